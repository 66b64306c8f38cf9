//! The generated instruction set: questions whose answers follow rules that a small model can learn in minutes.
//!
//! Every fact (the sum of these two numbers, the reverse of this list) belongs either to training or to the held-out
//! questions, by a hash of the fact and the seed: no held-out fact is ever seen in training, in any wording.

use std::collections::HashSet;

use super::Example;
use super::rng::{Rng, hash_text};

/// One in this many facts is held out.
const HELD_OUT_ONE_IN: u64 = 8;

const NAMES: [&str; 12] = [
    "Anna", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kim", "Leo",
];
const COLOURS: [&str; 8] = [
    "red", "blue", "green", "black", "white", "brown", "pink", "grey",
];
const THINGS: [&str; 16] = [
    "kite", "drum", "book", "lamp", "coat", "boat", "ring", "cup", "hat", "bag", "key", "map",
    "bell", "desk", "rope", "vase",
];
const CITIES: [&str; 10] = [
    "Rome", "Oslo", "Paris", "Lima", "Cairo", "Tokyo", "Delhi", "Quito", "Bern", "Riga",
];
const ANIMALS: [&str; 16] = [
    "cat", "dog", "fox", "owl", "bee", "cow", "hen", "pig", "rat", "ant", "bat", "elk", "emu",
    "yak", "ape", "eel",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const MONTHS: [(&str, usize); 12] = [
    ("January", 31),
    ("February", 28),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
];
/// What is added or taken away. With any digit, a model of this size had one unseen sum in twenty right after 1,100
/// steps.
const STEPS: [usize; 4] = [1, 2, 3, 10];
/// Larger unit, smaller unit, how many of the smaller make one of the larger.
const UNITS: [(&str, &str, usize); 6] = [
    ("metres", "centimetres", 100),
    ("kilometres", "metres", 1000),
    ("kilograms", "grams", 1000),
    ("litres", "millilitres", 1000),
    ("centimetres", "millimetres", 10),
    ("dollars", "cents", 100),
];

/// Training facts are drawn from the kinds in this order: sums, lists and texts take longest to learn.
const TRAINING_KINDS: [usize; 10] = [0, 3, 4, 0, 1, 3, 0, 2, 4, 3];

/// The families of questions, as reports name them.
pub const KINDS: [&str; 5] = ["arithmetic", "dates", "units", "lists", "texts"];

/// A fact and its wordings.
struct Fact {
    kind: &'static str,
    /// What decides whether the fact is held out: the same for all its wordings.
    key: String,
    prompt: String,
    response: String,
    /// The same fact as a sentence, for the base model.
    statement: String,
}

/// The data of a run without files.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// Sentences that state training facts, for the base model.
    pub statements: Vec<String>,
    /// Questions and answers about training facts.
    pub train: Vec<Example>,
    /// Questions about facts that appear nowhere in training, evenly over [`KINDS`].
    pub held_out: Vec<Example>,
}

/// Generates `num_train` statements and questions and `num_held_out` unseen questions; equal seeds give equal data.
pub fn generate(seed: u64, num_train: usize, num_held_out: usize) -> Generated {
    let mut rng = Rng::new(seed, 1);
    let mut statements = Vec::with_capacity(num_train);
    let mut train = Vec::with_capacity(num_train);
    let mut held_out = Vec::with_capacity(num_held_out);
    let mut asked = HashSet::new();
    while held_out.len() < num_held_out {
        let fact = fact(held_out.len() % KINDS.len(), &mut rng);
        if is_held_out(&fact, seed) && asked.insert(fact.prompt.clone()) {
            held_out.push(example(fact));
        }
    }
    while train.len() < num_train {
        let fact = fact(TRAINING_KINDS[train.len() % TRAINING_KINDS.len()], &mut rng);
        if !is_held_out(&fact, seed) {
            statements.push(fact.statement.clone());
            train.push(example(fact));
        }
    }
    Generated {
        statements,
        train,
        held_out,
    }
}

fn is_held_out(fact: &Fact, seed: u64) -> bool {
    hash_text(&fact.key, seed).is_multiple_of(HELD_OUT_ONE_IN)
}

fn example(fact: Fact) -> Example {
    Example {
        kind: Some(fact.kind),
        prompt: fact.prompt,
        response: fact.response,
    }
}

fn fact(kind: usize, rng: &mut Rng) -> Fact {
    let (key, prompt, response, statement) = match kind {
        0 => arithmetic(rng),
        1 => date(rng),
        2 => units(rng),
        3 => list(rng),
        _ => text(rng),
    };
    Fact {
        kind: KINDS[kind],
        key,
        prompt,
        response,
        statement,
    }
}

/// Key, prompt, response, statement.
type Words = (String, String, String, String);

fn arithmetic(rng: &mut Rng) -> Words {
    let (a, b) = (20 + rng.below(70), STEPS[rng.below(STEPS.len())]);
    let (sign, word, result) = match rng.below(2) {
        0 => ('+', "plus", a + b),
        _ => ('-', "minus", a - b),
    };
    (
        format!("{a}{sign}{b}"),
        format!("What is {a} {word} {b}?"),
        format!("{result}"),
        format!("{a} {word} {b} is {result}."),
    )
}

fn date(rng: &mut Rng) -> Words {
    if rng.below(4) == 0 {
        let (today, name) = (rng.below(7), rng.pick(&NAMES));
        let (when, other) = match rng.below(2) {
            0 => ("tomorrow", DAYS[(today + 1) % 7]),
            _ => ("yesterday", DAYS[(today + 6) % 7]),
        };
        let today = DAYS[today];
        return (
            format!("{today} {when} {name}"),
            format!("{name} says today is {today}. What day is {when}?"),
            other.to_string(),
            format!("{name} says today is {today}, so {when} is {other}."),
        );
    }
    let month = rng.below(12);
    let (name, num_days) = MONTHS[month];
    let day = 1 + rng.below(num_days);
    let (next, after) = if day == num_days {
        (MONTHS[(month + 1) % 12].0, 1)
    } else {
        (name, day + 1)
    };
    (
        format!("{name} {day}"),
        format!("What date comes after {name} {day}?"),
        format!("{next} {after}"),
        format!("After {name} {day} comes {next} {after}."),
    )
}

fn units(rng: &mut Rng) -> Words {
    let (large, small, factor) = UNITS[rng.below(UNITS.len())];
    let n = 2 + rng.below(98);
    let m = n * factor;
    (
        format!("{n} {large}"),
        format!("How many {small} are {n} {large}?"),
        format!("{m}"),
        format!("{n} {large} are {m} {small}."),
    )
}

fn list(rng: &mut Rng) -> Words {
    let num_items = 3 + rng.below(2);
    let mut digits = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let mut animals = ANIMALS;
    let of_digits = rng.below(2) == 0;
    let items = if of_digits {
        rng.shuffle(&mut digits);
        &digits[..num_items]
    } else {
        rng.shuffle(&mut animals);
        &animals[..num_items]
    };
    let mut sorted = items.to_vec();
    sorted.sort_unstable();
    let reversed: Vec<&str> = items.iter().rev().copied().collect();
    let (task, answer) = match rng.below(if of_digits { 5 } else { 3 }) {
        0 => ("Reverse", reversed.join(" ")),
        1 => ("First of", items[0].to_string()),
        2 => ("Last of", items[num_items - 1].to_string()),
        3 => ("Sort", sorted.join(" ")),
        _ => ("Largest of", sorted[num_items - 1].to_string()),
    };
    let given = items.join(" ");
    // Keyed by the list, so that a held-out list is new to every task.
    (
        given.clone(),
        format!("{task}: {given}"),
        answer.clone(),
        format!("{task}: {given} is {answer}"),
    )
}

fn text(rng: &mut Rng) -> Words {
    let (name, city) = (rng.pick(&NAMES), rng.pick(&CITIES));
    let (colour, thing) = (rng.pick(&COLOURS), rng.pick(&THINGS));
    let story = format!("{name} lives in {city} and has a {colour} {thing}.");
    let (question, answer) = match rng.below(4) {
        0 => (format!("Who lives in {city}?"), name.to_string()),
        1 => (format!("Where does {name} live?"), city.to_string()),
        2 => (format!("What colour is the {thing}?"), colour.to_string()),
        _ => (
            format!("What does {name} have?"),
            format!("a {colour} {thing}"),
        ),
    };
    let statement = format!("{story} {name} has a {thing} in {city}, and it is {colour}.");
    (
        story.clone(),
        format!("{story} {question}"),
        answer,
        statement,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_data_and_others_do_not() {
        assert_eq!(generate(7, 500, 50), generate(7, 500, 50));
        assert_ne!(generate(7, 500, 50), generate(8, 500, 50));
    }

    #[test]
    fn held_out_questions_appear_nowhere_in_training() {
        let data = generate(3, 20_000, 200);
        let trained: HashSet<&str> = data
            .train
            .iter()
            .map(|example| example.prompt.as_str())
            .collect();
        assert_eq!(data.held_out.len(), 200);
        for example in &data.held_out {
            assert!(
                !trained.contains(example.prompt.as_str()),
                "{}",
                example.prompt
            );
        }
    }

    #[test]
    fn held_out_questions_are_distinct_and_cover_every_kind() {
        let data = generate(0, 100, 100);
        let distinct: HashSet<&str> = data
            .held_out
            .iter()
            .map(|example| example.prompt.as_str())
            .collect();
        assert_eq!(distinct.len(), 100);
        for kind in KINDS {
            assert_eq!(
                data.held_out
                    .iter()
                    .filter(|example| example.kind == Some(kind))
                    .count(),
                20,
                "{kind}"
            );
        }
    }

    #[test]
    fn answers_follow_from_the_questions() {
        for example in generate(5, 3000, 0).train {
            let words: Vec<&str> = example
                .prompt
                .trim_end_matches(['?', '.'])
                .split(' ')
                .collect();
            let number = |i: usize| words[i].parse::<usize>().expect("a number");
            let expected = match words.as_slice() {
                ["What", "is", _, "plus", _] => (number(2) + number(4)).to_string(),
                ["What", "is", _, "minus", _] => (number(2) - number(4)).to_string(),
                ["Reverse:", items @ ..] => {
                    items.iter().rev().copied().collect::<Vec<_>>().join(" ")
                }
                ["Last", "of:", .., last] => (*last).to_string(),
                ["How", "many", "grams", "are", _, "kilograms"] => {
                    format!("{}000", number(4))
                }
                ["What", "date", .., "December", "31"] => "January 1".to_string(),
                _ => continue,
            };
            assert_eq!(example.response, expected, "{}", example.prompt);
        }
    }
}
