"""Generated English: little stories, descriptions, short dialogues, arithmetic, and the
"facts" (needles) with their questions. Everything is drawn from small grammars with a
random.Random, so text is reproducible from a seed and free of any licence.
"""

NAMES = """Anna Ben Clara David Ella Frank Grace Henry Iris Jack Kate Leo Mia Noah Olive Peter Rose Sam
Tom Una Victor Wendy Max Lily Oscar Ruth Simon Tessa Hugo Nora Otto Paula Emma Felix Gina Hans Ida Jonas
Karl Lena Martin Nina Oliver Petra Robin Sara Theo Vera Walter Zoe Miriam Aaron Bella Daniel Esther Flora
George Helen Isaac Judith""".split()
SHE = set(
    """Anna Clara Ella Grace Iris Kate Mia Olive Rose Una Wendy Lily Ruth Tessa Nora Paula Emma Gina
Ida Lena Nina Petra Sara Vera Zoe Miriam Bella Esther Flora Helen Judith""".split()
)
ANIMALS = "dog cat horse bird rabbit fox mouse duck goat sheep cow frog bear owl pig hen".split()
ADJ_ANIMAL = "small big brown white black old young happy brave clever quiet kind".split()
COLOURS = "red blue green yellow white black brown golden silver grey".split()
OBJECTS = "lamp key book cup box coat bell ring map hat drum clock chair basket knife flag stone bottle letter crown".split()
MATERIAL = "silver golden wooden iron glass paper copper stone red blue green black white old small big round broken".split()
ROOMS = "tower kitchen garden cellar barn library attic hall stable school church mill market harbour cave forest".split()
SIDE = "north south east west old new upper lower inner outer great little".split()
PLACES = "garden forest river village market hill lake school farm beach mountain field".split()
WEATHER = [
    "The sun was shining.",
    "It was raining.",
    "It was a cold day.",
    "The wind was strong.",
    "It was a warm day.",
    "The snow was deep.",
    "The sky was blue.",
    "It was a quiet night.",
    "The moon was bright.",
]
TIMES = [
    "One day",
    "One morning",
    "One evening",
    "One night",
    "In the spring",
    "In the winter",
    "Last summer",
    "Long ago",
    "After lunch",
    "On a sunny day",
]
FOOD = "bread apples cake soup cheese honey milk eggs fish rice berries carrots".split()
FEEL = "happy sad tired hungry afraid proud angry glad surprised cold".split()
FAMILY = "mother father sister brother friend grandmother grandfather teacher neighbour".split()
NUMBERS = ["pass key", "pass key", "secret number", "door code"]
NUM = "zero one two three four five six seven eight nine ten eleven twelve".split()


def art(w):
    return ("an " if w[0] in "aeiou" else "a ") + w


class Gen:
    """All generators take their randomness from one random.Random."""

    def __init__(self, rng):
        self.r = rng

    def c(self, xs):
        return xs[int(self.r.random() * len(xs))]

    # ------------------------------------------------------------- stories ---
    def story(self):
        c = self.c
        n = c(NAMES)
        p, P, o, s = ("she", "She", "her", "her") if n in SHE else ("he", "He", "him", "his")
        n2 = c(NAMES)
        while n2 == n:
            n2 = c(NAMES)
        p2 = "she" if n2 in SHE else "he"
        an, an2 = c(ANIMALS), c(ANIMALS)
        adj, pl, ob, mat = c(ADJ_ANIMAL), c(PLACES), c(OBJECTS), c(MATERIAL)
        pl2, fam, food, feel = c(PLACES), c(FAMILY), c(FOOD), c(FEEL)
        kind = int(self.r.random() * 12)
        L = []
        a = L.append
        kid = "girl" if n in SHE else "boy"
        if kind == 0:  # lost and found
            a(f"Once upon a time there was a little {kid} named {n}.")
            a(f"{n} had {art(mat)} {ob} that {p} liked very much.")
            a(f"{c(TIMES)}, {n} went to the {pl} and lost the {ob}.")
            a(f"{P} was very sad and began to cry.")
            a(f'{art(adj).capitalize()} {an} saw {o} and asked, "Why are you crying?"')
            a(f'"I lost my {ob}," said {n}.')
            a(c([f'"I will help you," said the {an}.', f"The {an} wanted to help."]))
            a(f"They looked near the {pl2} and under the trees.")
            a(
                f"At last the {an} found the {ob} {c(['in the grass', 'behind a stone', 'under a tree', 'by the water'])}."
            )
            a(f'{n} was very happy and said, "Thank you, {an}!"')
            a(
                c(
                    [
                        f"From that day on, {n} and the {an} were good friends.",
                        f"Then {n} went home and told {s} {fam} about the {an}.",
                    ]
                )
            )
        elif kind == 1:  # animal
            a(f"There was once {art(adj)} {an} who lived near the {pl}.")
            a(f"Every day the {an} went to the {pl2} to look for {food}.")
            a(f"{c(TIMES)}, the {an} met {art(c(ADJ_ANIMAL))} {an2}.")
            a(f'"Good morning," said the {an2}. "Where are you going?"')
            a(f'"I am going to the {pl2}," said the {an}. "I am hungry."')
            a(f'"Come with me," said the {an2}. "I have some {food} at home."')
            a(f"So they walked together to the house of the {an2}.")
            a(f"They ate the {food} and talked until the sun went down.")
            a(f"The {an} was {c(['very happy', 'glad to have a friend', 'not hungry any more'])}.")
        elif kind == 2:  # baking / sharing
            a(f"{n} wanted to make some {food} for {s} {fam}.")
            a(f"{P} went to the market and bought {art(mat)} {ob} and some {c(FOOD)}.")
            a(f"On the way home {p} met {n2}.")
            a(f"{n2} was {feel} because {p2} had nothing to eat.")
            a(f"{n} gave {n2} some of the {food}.")
            a(f'"You are very kind," said {n2}.')
            a(f'When {n} came home, {s} {fam} smiled and said, "I am proud of you."')
        elif kind == 3:  # weather walk
            a(f"{c(TIMES)}, {n} and {n2} went for a walk to the {pl}.")
            a(c(WEATHER))
            a(
                f"They saw {art(c(ADJ_ANIMAL))} {an} near the {c(['water', 'road', 'old tree', 'gate', 'bridge'])}."
            )
            a(f'"Look at the {an}!" said {n}.')
            a(f"The {an} looked at them and then ran away.")
            a(f"{n2} found {art(mat)} {ob} on the ground and gave it to {n}.")
            a(
                f"In the evening they were {c(['tired', 'tired but happy', 'hungry', 'glad to be home'])} and went to bed."
            )
        elif kind == 4:  # learning
            a(
                f"{n} was {feel} because {p} could not {c(['swim', 'read', 'ride a horse', 'sing', 'climb the tree', 'jump over the wall'])}."
            )
            a(f'"Do not worry," said {s} {fam}. "You must try again every day."')
            a(f"So {n} tried again in the morning and in the evening.")
            a(f"At first it was very hard, and {p} wanted to stop.")
            a(f"But after {c(NUM[2:])} days {p} could do it.")
            a(f"{s.capitalize()} {fam} was very proud, and {n} was happy.")
        elif kind == 5:  # secret
            a(f"In the old house by the {pl} there was {art(mat)} {ob}.")
            a(f"Nobody knew who had put the {ob} there.")
            a(f"{c(TIMES)}, {n} opened the door and went inside.")
            a(f"It was dark, and {p} was a little afraid.")
            a(f"Then {p} saw a light. It was {n2} with a small lamp.")
            a(f'"What are you doing here?" asked {n2}.')
            a(f'"I am looking for the {ob}," said {n}.')
            a(f"They took the {ob} and carried it to the {pl2}.")
            a(
                c(
                    [
                        "The people of the village were very glad.",
                        f"There they gave it to {art(adj)} old man.",
                        f"{n} never forgot that day.",
                    ]
                )
            )
        elif kind == 6:  # lesson with animals
            a(f"{art(adj).capitalize()} {an} and {art(c(ADJ_ANIMAL))} {an2} lived on a farm.")
            a(f"The {an} worked all day, but the {an2} only wanted to sleep.")
            a(f'"Why do you work so hard?" asked the {an2}.')
            a(f'"Winter is coming," said the {an}, "and I need {food} for the cold days."')
            a(f"When the snow came, the {an2} had nothing to eat.")
            a(f'The {an} opened the door and said, "Come in and eat with me."')
            a(f'The {an2} said, "Thank you. Next year I will help you."')
        elif kind == 7:  # on the water
            a(f"{n} and {n2} had a small boat on the {c(['river', 'lake', 'sea'])}.")
            a(f"{c(TIMES)}, they took some {food} and {art(mat)} {ob} and went out on the water.")
            a(c(WEATHER))
            a(f"After some time they saw {art(adj)} {an} in the water.")
            a(f'"We must help the {an}," said {n2}.')
            a(f"{n} took the {an} into the boat and gave it some {food}.")
            a(f"Then they went back to the {pl}, and the {an} followed them home.")
            a(
                f"{c(['Now it lives in the garden', 'It was glad and never went away', 'They were good friends for many years'])}."
            )
        elif kind == 8:  # at school
            a(f"{n} is {c(NUM[5:])} years old and goes to school in the village.")
            a(
                f"{P} likes to {c(['read books', 'sing songs', 'draw animals', 'play with the other children', 'hear stories'])}."
            )
            a(f'Today the teacher asked, "Who has seen {art(an)}?"')
            a(f'"I have seen {art(adj)} {an} near the {pl}," said {n}.')
            a(f'"What did the {an} do?" asked {n2}.')
            a(
                f'"It {c(["ate some " + food, "slept under a tree", "looked at me and ran away", "followed me home"])}," said {n}.'
            )
            a(f"All the children laughed, and the teacher was {c(['glad', 'happy', 'surprised'])} too.")
        elif kind == 9:  # the storm
            a(f"{c(TIMES)}, there was a great storm over the {pl}.")
            a(f"The wind was so strong that the {c(['door', 'roof', 'gate', 'big tree'])} fell down.")
            a(f"{n} could not sleep, and the {an} was afraid.")
            a(f'"Come here," said {n}. "You can sleep in my bed."')
            a("In the morning the sun was shining, and the storm was over.")
            a(f"{n} and {s} {fam} went out and made the {c(['house', 'gate', 'door', 'roof'])} new again.")
            a(f"In the grass they found {art(mat)} {ob} that the wind had brought.")
        elif kind == 10:  # the old man or woman
            who = c(["man", "woman"])
            a(f"An old {who} lived alone in a small house near the {pl}.")
            a(f"The old {who} had only {art(adj)} {an} and {art(mat)} {ob}.")
            a(
                f'{c(TIMES)}, {n} came to the house and said, "May I come in? I am {c(["cold", "hungry", "tired", "lost"])}."'
            )
            a(f'"Sit down by the fire," said the old {who}. "Here is some {food}."')
            a(f"{n} ate the {food} and told a long story about the {pl2}.")
            a(f"The old {who} had not laughed for many years, but now both of them laughed.")
            a(f"From then on {n} came every week, and the old {who} was not alone any more.")
        else:  # a gift
            a(f"It was the birthday of {n}.")
            a(f"{s.capitalize()} {fam} gave {o} {art(mat)} {ob}.")
            a(f"{n2} gave {o} {art(adj)} {an}.")
            a(f"{n} loved the {an} and gave it {c(FOOD)} every day.")
            a(
                f"The {an} {c(['slept in a basket by the fire', 'followed ' + o + ' to school', 'played in the ' + pl])}."
            )
            a(f"{c(WEATHER)}")
            a(f'{n} said, "This is the best day of my life."')
        return " ".join(L)

    def description(self):
        c = self.c
        ob, ro, an = c(OBJECTS), c(ROOMS), c(ANIMALS)
        L = [
            f"The {ro} is {c(['big', 'small', 'dark', 'quiet', 'old', 'warm'])}.",
            f"There is {art(c(MATERIAL))} {ob} on the {c(['table', 'floor', 'wall', 'shelf'])}.",
            f"{art(c(ADJ_ANIMAL)).capitalize()} {an} sits by the {c(['door', 'window', 'fire', 'gate'])}.",
            f"The {c(['door', 'window', 'roof', 'floor', 'wall'])} is {c(COLOURS)}.",
            f"Outside, the {c(['trees are green', 'flowers are red', 'river is wide', 'road is long', 'birds are singing'])}.",
            c(
                [
                    "In the evening the people come home.",
                    "In the morning the children go to school.",
                    "At night it is very quiet.",
                ]
            ),
        ]
        self.r.shuffle(L)
        return " ".join(L[: 3 + int(self.r.random() * 4)])

    # ----------------------------------------------------------- dialogues ---
    def chat_pair(self):
        """One question and its answer (no retrieval needed)."""
        c, k = self.c, int(self.r.random() * 13)
        if k == 0:
            a, b = int(self.r.random() * 10), int(self.r.random() * 10)
            return f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."
        if k == 1:
            a = int(self.r.random() * 8)
            return f"Count from {a} to {a + 4}.", ", ".join(str(a + i) for i in range(5)) + "."
        if k == 2:
            th, col = c(
                [
                    ("sky", "blue"),
                    ("grass", "green"),
                    ("snow", "white"),
                    ("sun", "yellow"),
                    ("night", "black"),
                    ("blood", "red"),
                ]
            )
            return f"What colour is the {th}?", f"The {th} is {col}."
        if k == 3:
            th, n = c(
                [
                    ("dog", "four"),
                    ("bird", "two"),
                    ("cat", "four"),
                    ("horse", "four"),
                    ("duck", "two"),
                    ("fox", "four"),
                    ("owl", "two"),
                ]
            )
            return f"How many legs does {art(th)} have?", f"{art(th).capitalize()} has {n} legs."
        if k == 4:
            return c(["Hello!", "Hello.", "Hi!", "Good morning!", "Good day!"]), c(
                [
                    "Hello! How can I help you?",
                    "Good morning! How are you today?",
                    "Hello! I am glad to see you.",
                ]
            )
        if k == 5:
            return c(
                ["Who are you?", "What are you?", "What is your name?"]
            ), "I am a very small language model. I live inside the engine."
        if k == 6:
            th, w = c(
                [
                    ("bread", "in the kitchen"),
                    ("fish", "in the water"),
                    ("trees", "in the forest"),
                    ("books", "in the library"),
                    ("boats", "on the river"),
                    ("stars", "in the sky"),
                ]
            )
            return f"Where can I find {th}?", f"You can find {th} {w}."
        if k == 7:
            a, b = c(
                [
                    ("hot", "cold"),
                    ("big", "small"),
                    ("day", "night"),
                    ("old", "new"),
                    ("up", "down"),
                    ("good", "bad"),
                    ("black", "white"),
                    ("happy", "sad"),
                ]
            )
            return f"What is the opposite of {a}?", f"The opposite of {a} is {b}."
        if k == 8:
            return c(["Tell me a story.", "Please tell me a story.", "Write a short story."]), self.story()
        if k == 9:
            days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
            i = int(self.r.random() * 7)
            return f"What day comes after {days[i]}?", f"{days[(i + 1) % 7]} comes after {days[i]}."
        if k == 10:
            i = int(self.r.random() * 12)
            return (
                f"What number comes after {NUM[i]}?",
                f"{(NUM + ['thirteen'])[i + 1].capitalize()} comes after {NUM[i]}.",
            )
        if k == 11:
            th, w = c(
                [
                    ("cut bread", "a knife"),
                    ("open a door", "a key"),
                    ("read", "a book"),
                    ("drink", "a cup"),
                    ("see at night", "a lamp"),
                    ("cross the water", "a boat"),
                    ("find the way", "a map"),
                    ("sit down", "a chair"),
                ]
            )
            return f"What do I need to {th}?", f"You need {w} to {th}."
        an, s = c(
            [
                ("dog", "bark"),
                ("cat", "meow"),
                ("cow", "moo"),
                ("duck", "quack"),
                ("sheep", "baa"),
                ("bird", "sing"),
            ]
        )
        return f"What does {art(an)} say?", f"{art(an).capitalize()} can {s}."

    def turns(self):
        """A short conversation in pieces (text, True if the assistant says it)."""
        t = (
            [("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n", False)]
            if self.r.random() < 0.12
            else []
        )
        for _ in range(1 + int(self.r.random() * 4)):
            q, a = self.chat_pair()
            t += [
                (f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n", False),
                (f"{a}<|im_end|>\n", True),
            ]
        return t

    def dialogue(self):
        return "".join(t for t, _ in self.turns())

    # --------------------------------------------------------------- facts ---
    def name(self):
        """Mostly a common name, sometimes an invented one."""
        if self.r.random() < 0.75:
            return self.c(NAMES)
        s = "".join(
            self.c("b d f g h k l m n p r s t v z br tr kl st".split()) + self.c("aeiou")
            for _ in range(2 + (self.r.random() < 0.4))
        )
        return (s + self.c(["", "n", "r", "s", "l"])).capitalize()

    def facts(self, n, kinds=(0, 1, 2, 3), near=0.3):
        """n facts with distinct keys. A fact is (key, lead, value, question, parts):
        the sentence is lead + value + ".", and so is the answer to the question. parts holds
        lead and question once more, in pieces (text, i); i numbers the words that name the key. With probability `near`
        a fact shares one key word with an earlier one."""
        out, used = [], set()
        while len(out) < n:
            k = self.c(kinds)
            old = self.c(out)[0] if out and self.r.random() < near else (k,)
            k = old[0]
            half = 1 + (self.r.random() < 0.5)  # the key word that is taken over
            if k == 0:
                name, what = self.name(), self.c(NUMBERS)
                if len(old) == 3:
                    name, what = (old[1], what) if half == 1 else (name, old[2])
                key = (0, name, what)
                lead = [("The", -1), (" " + what, 1), (" of", -1), (" " + name, 0), (" is", -1)]
                q = self.c(
                    [
                        [("What is the", -1), (" " + what, 1), (" of", -1), (" " + name, 0), ("?", -1)],
                        [("Tell me the", -1), (" " + what, 1), (" of", -1), (" " + name, 0), (".", -1)],
                    ]
                )
                val = " " + "".join(str(int(self.r.random() * 10)) for _ in range(5))
            elif k == 3:
                name = self.name()
                key = (3, name)
                lead = [("The home of", -1), (" " + name, 0), (" is the", -1)]
                q = self.c(
                    [
                        [("Where is the home of", -1), (" " + name, 0), ("?", -1)],
                        [("Where does", -1), (" " + name, 0), (" live?", -1)],
                    ]
                )
                val = f" {self.c(SIDE)} {self.c(ROOMS)}"
            elif k == 1:
                mat, ob = self.c(MATERIAL), self.c(OBJECTS)
                if len(old) == 3:
                    mat, ob = (old[1], ob) if half == 1 else (mat, old[2])
                key = (1, mat, ob)
                lead = [("The", -1), (" " + mat, 0), (" " + ob, 1), (" is kept in the", -1)]
                q = self.c(
                    [
                        [("Where is the", -1), (" " + mat, 0), (" " + ob, 1), (" kept?", -1)],
                        [("Where can I find the", -1), (" " + mat, 0), (" " + ob, 1), ("?", -1)],
                    ]
                )
                val = f" {self.c(SIDE)} {self.c(ROOMS)}"
            else:
                name, an = self.name(), self.c(ANIMALS)
                if len(old) == 3:
                    name, an = (old[1], an) if half == 1 else (name, old[2])
                key = (2, name, an)
                lead = [("The", -1), (" " + an, 0), (" of", -1), (" " + name, 1), (" is called", -1)]
                q = self.c(
                    [
                        [("What is the", -1), (" " + an, 0), (" of", -1), (" " + name, 1), (" called?", -1)],
                        [
                            ("What is the name of the", -1),
                            (" " + an, 0),
                            (" of", -1),
                            (" " + name, 1),
                            ("?", -1),
                        ],
                    ]
                )
                val = " " + self.c(NAMES)
            if key in used:
                continue
            used.add(key)
            out.append((key, "".join(t for t, _ in lead), val, "".join(t for t, _ in q), (lead, q)))
        return out
