# The project on a CPU, with PyTorch's build for CPUs: 4 GB. docs/install.md shows its use.
FROM python:3.11-slim

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /cocondenser
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# What is installed depends on these files alone: a change of others keeps this layer.
COPY Makefile setup.py constraints.txt pyproject.toml README.md ./
COPY cocondenser_jax/__init__.py cocondenser_jax/
RUN python -m venv .venv \
    && .venv/bin/pip install --no-deps --constraint constraints.txt \
       --index-url https://download.pytorch.org/whl/cpu torch \
    && make .venv/tools

COPY . .
# A layer that was kept may be older than the files of a new clone.
RUN touch .venv/installed && touch .venv/tools

CMD ["make", "quickstart"]
