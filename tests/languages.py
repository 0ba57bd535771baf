"""Sentences in six languages, three of them without spaces between words."""

SENTENCES = {
    "chinese": """
        长江是亚洲最长的河流，从青藏高原流向东海。
        北京是中国的首都，故宫位于城市的中心。
        大熊猫主要吃竹子，生活在四川的山区里。
        造纸术、印刷术、火药和指南针被称为四大发明。
        月球绕地球一周大约需要二十七天。
        水在零摄氏度时结成冰，在一百度时沸腾。
        珠穆朗玛峰是世界上最高的山，位于中国和尼泊尔的边界。
        茶树的叶子经过发酵以后可以制成红茶。
        蜜蜂用舞蹈告诉同伴花朵的方向和距离。
        1969年，人类第一次登上了月球。
        上海的地铁网络每天运送上千万名乘客。
    """,
    "japanese": """
        富士山は日本で一番高い山で、静岡県と山梨県にまたがっている。
        東京タワーは1958年に完成し、電波を送るために使われた。
        桜の花は春に咲き、散るまでの期間は短い。
        新幹線は東京と大阪のあいだを約二時間半で結ぶ。
        俳句は五・七・五の音からなる短い詩である。
        琵琶湖は滋賀県にあり、日本最大の湖として知られる。
        味噌と醤油は大豆を発酵させて作られる。
        北海道では冬にたくさんの雪が降り、スキー客が集まる。
        地震が起きたときは、まず机の下に隠れて頭を守る。
        クジラは魚ではなく、肺で呼吸する哺乳類である。
        平安時代に紫式部が源氏物語を書いた。
    """,
    "thai": """
        กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยและมีแม่น้ำเจ้าพระยาไหลผ่าน
        ช้างเป็นสัตว์บกที่ใหญ่ที่สุดในโลก
        ข้าวหอมมะลิปลูกมากในภาคตะวันออกเฉียงเหนือ
        ดวงจันทร์โคจรรอบโลกใช้เวลาประมาณยี่สิบเจ็ดวัน
        ทุเรียนมีกลิ่นแรงแต่หลายคนชอบรสชาติหวานมัน
        วันสงกรานต์ผู้คนสาดน้ำใส่กันเพื่อคลายร้อน
        ยอดเขาที่สูงที่สุดในประเทศคือดอยอินทนนท์ในจังหวัดเชียงใหม่
        มวยไทยใช้หมัด ศอก เข่า และเท้าในการต่อสู้
        ผึ้งเก็บน้ำหวานจากดอกไม้มาทำน้ำผึ้ง
        อยุธยาเคยเป็นราชธานีก่อนถูกกองทัพพม่าทำลาย
        รถไฟฟ้าช่วยให้การเดินทางในเมืองรวดเร็วขึ้น
    """,
    "arabic": """
        القاهرة عاصمة مصر ويمر بها نهر النيل العظيم
        بنى المصريون القدماء الأهرامات في الجيزة قبل آلاف السنين
        يدور القمر حول الأرض مرة كل سبعة وعشرين يوما تقريبا
        الجمل حيوان صحراوي يتحمل العطش أياما طويلة
        كتب ابن سينا كتاب القانون في الطب
        تنتج النخلة التمر وهو غذاء غني بالسكر
        وضع الخوارزمي أسس علم الجبر في بغداد
        يتجمد الماء عند درجة الصفر ويغلي عند مئة درجة
        برج خليفة في دبي أعلى مبنى في العالم
        تقع مدينة البتراء الوردية المنحوتة في الصخر جنوب الأردن
        يصنع النحل العسل من رحيق الأزهار
    """,
    "german": """
        Der Rhein entspringt in den Schweizer Alpen und mündet in die Nordsee.
        Johannes Gutenberg druckte in Mainz Bücher mit beweglichen Lettern.
        Bienen sammeln Nektar und bestäuben dabei viele Blüten.
        Die Zugspitze ist mit fast dreitausend Metern der höchste Berg Deutschlands.
        Ludwig van Beethoven wurde in Bonn geboren und starb in Wien.
        Wasser gefriert bei null Grad Celsius zu Eis.
        Die Berliner Mauer fiel im November 1989 nach friedlichen Protesten.
        Aus Gerste, Hopfen, Hefe und Wasser wird Bier gebraut.
        Im Schwarzwald werden seit Jahrhunderten Kuckucksuhren geschnitzt.
        Alexander von Humboldt bestieg in Ecuador den Vulkan Chimborazo.
        Der Mond umkreist die Erde in etwa siebenundzwanzig Tagen.
    """,
    "korean": """
        서울은 대한민국의 수도이며 한강이 도시를 가로질러 흐른다.
        세종대왕은 백성을 위해 한글을 만들었다.
        김치는 배추를 소금에 절여 고춧가루와 함께 발효시킨 음식이다.
        한라산은 제주도에 있는 화산으로 남한에서 가장 높다.
        달은 약 이십칠 일에 한 번 지구를 돈다.
        물은 섭씨 영 도에서 얼고 백 도에서 끓는다.
        벌은 꽃에서 꿀을 모으고 꽃가루를 옮긴다.
        경주는 신라의 옛 수도로 많은 유적이 남아 있다.
        금속 활자는 고려 시대에 처음 사용되었다.
        부산은 큰 항구가 있는 바닷가 도시이다.
        태권도는 발차기를 많이 쓰는 무술이다.
    """,
}


def sentences_of(language: str) -> list[str]:
    """Returns the sentences in a language."""
    return [line.strip() for line in SENTENCES[language].strip().splitlines()]
