"""Seeded English-like data that needs no network: a corpus to pretrain on, and an acceptability task to finetune on.

Both come from one small grammar. Each document fixes its cast (a main person, a companion), its topic (place, things,
people), its number and its tense in the opening sentences, and later sentences refer back to them, often without
repeating the cue, so that filling a masked name, pronoun, verb form or noun takes reading far back. The acceptability task
sets sentences of the same grammar against ones with a broken agreement or word order.
"""

import random
from dataclasses import dataclass, field

from datasets import ClassLabel, Dataset, Features, Value


GENERATOR_VERSION = 1  # raised when the same seed gives other text, so that corpora are prepared again

DOCUMENTS = {"train": 1000, "validation": 60, "test": 60}
ACCEPTABILITY_ROWS = {"train": 4000, "validation": 500, "test": 500}

NAMES = {
    "she": [
        "anna", "clara", "edith", "flora", "grace", "helen", "irene", "julia", "laura",
        "maria", "nora", "olive", "rosa", "sarah", "vera", "alice", "emma", "lucy",
    ],
    "he": [
        "albert", "boris", "carl", "david", "edgar", "felix", "george", "henry", "ivan",
        "james", "kurt", "leo", "martin", "oscar", "peter", "simon", "thomas", "walter",
    ],
}  # fmt: skip
PRONOUNS = {  # subject: object, possessive, reflexive
    "she": ("her", "her", "herself"),
    "he": ("him", "his", "himself"),
    "they": ("them", "their", "themselves"),
}
IRREGULAR_PLURALS = {
    "child": "children",
    "loaf": "loaves",
    "knife": "knives",
    "shelf": "shelves",
    "foreman": "foremen",
}
IRREGULAR_PASTS = {
    "find": "found", "sell": "sold", "build": "built", "break": "broke", "cut": "cut", "draw": "drew", "keep": "kept",
    "hold": "held", "bring": "brought", "say": "said", "know": "knew", "go": "went", "write": "wrote", "grow": "grew",
    "feed": "fed", "hurt": "hurt", "catch": "caught", "hang": "hung", "lead": "led", "show": "showed", "dig": "dug",
}  # fmt: skip
DOUBLED_BEFORE_ED = ("stop", "trim", "label")


@dataclass(frozen=True)
class Topic:
    """The words of one subject: where it happens, who is there, what is handled, how, and what it is like."""

    places: list[str]
    people: list[str]
    things: list[str]
    verbs: list[str]
    adjectives: list[str]


def _topic(places: str, people: str, things: str, verbs: str, adjectives: str) -> Topic:
    return Topic(places.split(), people.split(), things.split(), verbs.split(), adjectives.split())


TOPICS = [
    _topic("harbour island ferry lighthouse", "sailor captain fisher pilot", "net boat anchor rope sail lantern oar barrel",
           "pull tie catch repair paint carry", "wet heavy salty wooden grey broken"),
    _topic("farm meadow barn valley", "farmer shepherd miller rider", "goat cow pony plough fence basket apple cart",
           "feed wash sell raise count lead", "muddy young brown hungry strong thin"),
    _topic("kitchen bakery market cellar", "baker cook grocer waiter", "loaf knife pot berry cake spoon glass bowl",
           "bake cut fill taste clean serve", "warm sweet fresh bitter small round"),
    _topic("school library classroom museum", "teacher pupil reader writer", "book letter map lesson poem shelf picture notebook",
           "study open copy borrow write explain", "old famous short difficult clever long"),
    _topic("station depot bridge tunnel", "driver guard porter engineer", "train lorry ticket signal wheel engine wagon rail",
           "stop start inspect oil load move", "fast late rusty empty loud narrow"),
    _topic("theatre gallery studio square", "singer painter dancer actor", "song brush curtain portrait drum mask costume mirror",
           "draw practise praise polish hang show", "bright silent golden modern gentle strange"),
    _topic("hospital clinic chapel village", "doctor nurse patient visitor", "bottle bandage bed blanket needle pill towel lamp",
           "fold bring label store warm cover", "white clean soft quiet bitter sore"),
    _topic("mountain forest cabin lake", "hunter guide climber ranger", "tent axe trail fire bear torch stone pine",
           "find follow build burn watch cross", "cold steep dark wild distant frozen"),
    _topic("factory foundry workshop mill", "worker smith builder foreman", "hammer machine beam chain furnace box tool brick",
           "fix lift break hold melt stack", "hot iron sharp dusty solid square"),
    _topic("garden park orchard greenhouse", "gardener planter neighbour child", "rose tree seed bench hedge pond lily spade",
           "plant water trim grow dig pick", "green tall yellow fragrant early blue"),
]  # fmt: skip

TIMES = [
    "in the morning",
    "in the evening",
    "at noon",
    "after the storm",
    "before winter",
    "on sunday",
    "every week",
    "at night",
]
MOODS = ["happy", "tired", "proud", "angry", "calm", "worried"]


def _with_s(word: str) -> str:
    """The spelling of a word with the ending of the plural, or of the third person."""
    if word.endswith(("s", "x", "ch", "sh")) or word == "go":
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def _plural(noun: str) -> str:
    return IRREGULAR_PLURALS.get(noun) or _with_s(noun)


def _noun(noun: str, plural: bool) -> str:
    return _plural(noun) if plural else noun


def _past(stem: str) -> str:
    if stem.endswith("e"):
        return stem + "d"
    if stem.endswith("y") and stem[-2] not in "aeiou":
        return stem[:-1] + "ied"
    return stem + (stem[-1] if stem in DOUBLED_BEFORE_ED else "") + "ed"


def _verb(stem: str, plural: bool, past: bool) -> str:
    if stem == "be":
        return ("were" if plural else "was") if past else ("are" if plural else "is")
    if past:
        return IRREGULAR_PASTS.get(stem) or _past(stem)
    return stem if plural else _with_s(stem)


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


@dataclass
class _Story:
    """What a document has fixed, which all its sentences obey."""

    random: random.Random
    topic: Topic = field(init=False)

    def __post_init__(self) -> None:
        choose = self.random.choice
        self.topic = choose(TOPICS)
        self.pronoun = choose(["she", "he", "they"])
        self.past = self.random.random() < 0.5
        self.plural = self.pronoun == "they"
        if self.plural:
            self.hero = f"{choose(NAMES['she'])} and {choose(NAMES['he'])}"
        else:
            self.hero = choose(NAMES[self.pronoun])
        self.friend_pronoun = choose([one for one in ("she", "he") if one != self.pronoun])
        self.friend = choose([name for name in NAMES[self.friend_pronoun] if name not in self.hero])
        self.place, self.second_place = self.random.sample(self.topic.places, 2)
        self.trade = choose(self.topic.people)
        self.things = self.random.sample(self.topic.things, 3)
        self.treasure, self.quality = choose(self.topic.things), choose(self.topic.adjectives)
        self.mood = choose(MOODS)

    def verb(self, stem: str, plural: bool) -> str:
        return _verb(stem, plural, self.past)

    def opening(self) -> list[str]:
        trade, article = _noun(self.trade, self.plural), "" if self.plural else _article(self.trade) + " "
        own = PRONOUNS[self.pronoun][1]
        return [
            f"{self.hero} {self.verb('be', self.plural)} {article}{trade} at the {self.place} .",
            f"{self.friend} {self.verb('be', False)} {own} friend from the {self.second_place} .",
            f"{self.pronoun} {self.verb('keep', self.plural)} {_article(self.quality)} {self.quality} {self.treasure} at the {self.place} .",
        ]

    def sentence(self) -> str:
        """One later sentence; what it says of people, places, tense and the treasure was fixed in the opening."""
        choose, draw = self.random.choice, self.random.random()
        whom, own, self_word = PRONOUNS[self.pronoun]
        hero = self.pronoun if self.random.random() < 0.6 else self.hero
        act = self.verb(choose(self.topic.verbs), self.plural)
        thing = _noun(choose(self.things), self.random.random() < 0.4)
        place = self.place if self.random.random() < 0.7 else self.second_place
        when = choose(TIMES)
        if draw < 0.22:
            return f"{hero} {act} the {choose(self.topic.adjectives)} {thing} {when} ."
        if draw < 0.36:
            return f"at the {place} , {hero} {act} {own} {thing} ."
        if draw < 0.48:
            act = self.verb(choose(self.topic.verbs), False)
            return f"{self.friend} {act} the {thing} for {whom} {when} ."
        if draw < 0.58:
            return f"{hero} {self.verb('love', self.plural)} the {self.quality} {self.treasure} , and {self.friend} {self.verb('know', False)} it ."
        if draw < 0.68:
            several = self.random.random() < 0.5
            helper = _noun(choose(self.topic.people), several)
            act = self.verb(choose(self.topic.verbs), several)
            near = choose(self.topic.things)
            return f"the {helper} near the {_noun(near, self.random.random() < 0.5)} {act} the {thing} {when} ."
        if draw < 0.76:
            return f"{hero} {self.verb(choose(['hurt', 'blame', 'wash']), self.plural)} {self_word} {when} ."
        if draw < 0.84:
            return f"{self.friend_pronoun} {self.verb('say', False)} that {self.hero} {self.verb('be', self.plural)} {self.mood} ."
        if draw < 0.92:
            return f"{hero} {self.verb('go', self.plural)} to the {place} with {self.friend} {when} ."
        number = choose(["two", "three", "four"])
        return f"{number} {_plural(choose(self.things))} {self.verb('be', True)} at the {place} , but the {self.treasure} {self.verb('be', False)} {self.quality} ."


def synthetic_corpus(split: str = "train", seed: int = 0, num_documents: int | None = None) -> Dataset:
    """Documents of 15 to 40 sentences, one a row in the column `text`; the same arguments give the same text everywhere.

    `split` is train (1,000 documents unless told, about 1.4 MB), validation or test (60); they share words, not documents.
    """
    if split not in DOCUMENTS:
        raise ValueError(f"the synthetic corpus has no split {split!r}, only {', '.join(DOCUMENTS)}")
    documents = []
    for number in range(DOCUMENTS[split] if num_documents is None else num_documents):
        story = _Story(random.Random(f"corpus {seed} {split} {number}"))
        length = story.random.randint(12, 37)
        documents.append(" ".join(story.opening() + [story.sentence() for _ in range(length)]))
    return Dataset.from_dict({"text": documents}, features=Features({"text": Value("string")}))


def _acceptable_or_not(source: random.Random, broken: bool) -> str:
    """A sentence on its own, its words in a list until the end so that one rule can be broken in a known place."""
    choose = source.choice
    topic = choose(TOPICS)
    pronoun = choose(["she", "he", "they", "they"])
    plural = pronoun == "they"
    kind = choose(["verb", "verb", "reflexive", "number", "order"])
    agreeing = not (broken and kind == "verb")
    stem = choose(topic.verbs)
    trade, near, thing = choose(topic.people), choose(topic.things), choose(topic.things)
    subject = ["the", choose(topic.adjectives), _noun(trade, plural)]
    if source.random() < 0.5:
        subject += [choose(["near", "behind"]), "the", _noun(near, source.random() < 0.5)]
    verb = _verb(stem, plural == agreeing, past=False)
    if kind == "reflexive":
        stem = choose(["hurt", "blame", "wash"])
        names = [choose(NAMES[one]) for one in ("she", "he")]
        subject = [*names[:1], "and", *names[1:]] if plural else [names[pronoun == "he"]]
        wrong = choose([one for one in PRONOUNS if one != pronoun])
        words = [*subject, _verb(stem, plural, past=source.random() < 0.5), PRONOUNS[wrong if broken else pronoun][2]]
    elif kind == "number":
        number, many = choose([("two", True), ("these", True), ("one", False), ("this", False)])
        words = [*subject, verb, number, _noun(thing, many != broken)]
    else:
        words = [*subject, verb, "the", choose(topic.adjectives), _noun(thing, source.random() < 0.5)]
    if broken and kind == "order":
        place = choose([0, len(words) - 3, len(words) - 4])  # article, adjective, noun, verb: no swap of two is English
        words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words + (choose(TIMES).split() if source.random() < 0.5 else []) + ["."])


def synthetic_acceptability(split: str = "train", seed: int = 0) -> Dataset:
    """Rows (sentence, label, idx) as CoLA's: label 1 acceptable, 0 not; half each, no sentence in two splits.

    train has 4,000 rows, validation and test 500 each.
    """
    if split not in ACCEPTABILITY_ROWS:
        raise ValueError(f"synthetic acceptability has no split {split!r}, only {', '.join(ACCEPTABILITY_ROWS)}")
    source = random.Random(f"acceptability {seed}")
    seen: set[str] = set()
    # In this order up to the split asked for, so that none repeats another's.
    for name, rows in ACCEPTABILITY_ROWS.items():
        sentences: list[str] = []
        while len(sentences) < rows:
            sentence = _acceptable_or_not(source, broken=len(sentences) % 2 == 0)
            if sentence not in seen:
                seen.add(sentence)
                sentences.append(sentence)
        if name == split:
            break
    order = source.sample(range(rows), rows)
    columns = {
        "sentence": [sentences[place] for place in order],
        "label": [place % 2 for place in order],
        "idx": list(range(rows)),
    }
    label = ClassLabel(names=["unacceptable", "acceptable"])
    return Dataset.from_dict(
        columns, features=Features({"sentence": Value("string"), "label": label, "idx": Value("int32")})
    )
