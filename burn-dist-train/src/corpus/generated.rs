//! Generated questions, whose answers follow rules that a small model can learn in minutes: data for a run without
//! files.
//!
//! Every fact (the sum of these two numbers, the reverse of this list) belongs either to training or to the held-out
//! questions, by a hash of the fact and the seed: no held-out fact is ever seen in training, in any wording.

use std::collections::HashSet;

use thiserror::Error;

use super::Document;
use crate::rng::{Rng, hash_text};

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
/// How far the numbers of a count are apart. A number follows another in several counts, so that a held-out count is
/// made of steps that training has seen.
const STEPS: [(usize, &str); 2] = [(1, "ones"), (10, "tens")];
/// Numbers of a count after the first.
const COUNTED: usize = 3;
/// Items of a list.
const LISTED: usize = 3;
/// Larger unit, smaller unit, how many of the smaller make one of the larger.
const UNITS: [(&str, &str, usize); 6] = [
    ("metres", "centimetres", 100),
    ("kilometres", "metres", 1000),
    ("kilograms", "grams", 1000),
    ("litres", "millilitres", 1000),
    ("centimetres", "millimetres", 10),
    ("dollars", "cents", 100),
];

/// Training facts are drawn from the kinds in this order: lists and texts take longest to learn.
const TRAINING_KINDS: [usize; 10] = [0, 3, 4, 1, 3, 0, 2, 4, 3, 4];

/// The families of questions, as reports name them.
pub const KINDS: [&str; 5] = ["counting", "dates", "units", "lists", "texts"];

/// A question and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The family it was generated from; `None` if it was read from a file.
    pub kind: Option<&'static str>,
    /// The input of the model.
    pub prompt: String,
    /// The answer that it should give.
    pub response: String,
}

impl From<&Example> for Document {
    fn from(example: &Example) -> Self {
        Self::Pair {
            prompt: example.prompt.clone(),
            response: example.response.clone(),
        }
    }
}

/// There are not as many unseen questions as are asked for.
#[derive(Error)]
#[error(
    "{asked} unseen questions are asked for, and about {kind} only {made} can be made: ask for at most {most}"
)]
pub struct TooFewQuestions {
    /// The number that is asked for.
    pub asked: usize,
    /// The family that has too few.
    pub kind: &'static str,
    /// How many of it there are.
    pub made: usize,
    /// How many may be asked for.
    pub most: usize,
}

burn_dist_mesh::debug_by_message!(TooFewQuestions);

/// A fact and its wordings.
struct Fact {
    kind: &'static str,
    /// The key that decides whether the fact is held out: the same for all its wordings.
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

/// Draws without a new held-out question after which a kind counts as exhausted.
const DRAWS_IN_VAIN: usize = 100_000;

/// Generates `num_train` statements and questions and `num_held_out` unseen questions; equal seeds give equal data.
///
/// # Errors
/// [`TooFewQuestions`].
pub fn generate(
    seed: u64,
    num_train: usize,
    num_held_out: usize,
) -> Result<Generated, TooFewQuestions> {
    let mut rng = Rng::new(seed, 1);
    let mut statements = Vec::with_capacity(num_train);
    let mut train = Vec::with_capacity(num_train);
    let mut held_out = Vec::with_capacity(num_held_out);
    let mut asked = HashSet::new();
    let mut in_vain = 0;
    while held_out.len() < num_held_out {
        let kind = held_out.len() % KINDS.len();
        let fact = fact(kind, &mut rng);
        if is_held_out(&fact, seed) && asked.insert(fact.prompt.clone()) {
            held_out.push(example(fact));
            in_vain = 0;
            continue;
        }
        in_vain += 1;
        if in_vain == DRAWS_IN_VAIN {
            return Err(TooFewQuestions {
                asked: num_held_out,
                kind: KINDS[kind],
                made: held_out.len() / KINDS.len(),
                most: held_out.len(),
            });
        }
    }
    while train.len() < num_train {
        let fact = fact(TRAINING_KINDS[train.len() % TRAINING_KINDS.len()], &mut rng);
        if !is_held_out(&fact, seed) {
            statements.push(fact.statement.clone());
            train.push(example(fact));
        }
    }
    Ok(Generated {
        statements,
        train,
        held_out,
    })
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
        0 => counting(rng),
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

fn counting(rng: &mut Rng) -> Words {
    let (step, word) = STEPS[rng.below(STEPS.len())];
    let from = 30 + rng.below(70);
    let (way, numbers): (_, Vec<usize>) = match rng.below(2) {
        0 => ("up", (1..=COUNTED).map(|n| from + n * step).collect()),
        _ => ("down", (1..=COUNTED).map(|n| from - n * step).collect()),
    };
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    let numbers = numbers.join(" ");
    (
        format!("{from} {way} {step}"),
        format!("Count {way} in {word} from {from}:"),
        numbers.clone(),
        format!("Counting {way} in {word} from {from} gives {numbers}."),
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
    let mut digits = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let mut animals = ANIMALS;
    let of_digits = rng.below(2) == 0;
    let items = if of_digits {
        rng.shuffle(&mut digits);
        &digits[..LISTED]
    } else {
        rng.shuffle(&mut animals);
        &animals[..LISTED]
    };
    let mut sorted = items.to_vec();
    sorted.sort_unstable();
    let reversed: Vec<&str> = items.iter().rev().copied().collect();
    let (task, answer) = match rng.below(if of_digits { 5 } else { 3 }) {
        0 => ("Reverse", reversed.join(" ")),
        1 => ("First of", items[0].to_string()),
        2 => ("Last of", items[LISTED - 1].to_string()),
        3 => ("Sort", sorted.join(" ")),
        _ => ("Largest of", sorted[LISTED - 1].to_string()),
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
        let generated = |seed| generate(seed, 500, 50).expect("so many questions");
        assert_eq!(generated(7), generated(7));
        assert_ne!(generated(7), generated(8));
    }

    #[test]
    fn held_out_questions_appear_nowhere_in_training() {
        let data = generate(3, 20_000, 150).expect("so many questions");
        let trained: HashSet<&str> = data
            .train
            .iter()
            .map(|example| example.prompt.as_str())
            .collect();
        assert_eq!(data.held_out.len(), 150);
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
        let data = generate(0, 100, 100).expect("so many questions");
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
    fn more_questions_than_there_are_is_an_error() {
        let error = generate(0, 0, 10_000).expect_err("too many");
        let error = error.to_string();
        assert!(
            error.contains("10000 unseen questions") && error.contains("ask for at most"),
            "{error}"
        );
    }

    #[test]
    fn answers_follow_from_the_questions() {
        for example in generate(5, 3000, 0).expect("no questions").train {
            let words: Vec<&str> = example
                .prompt
                .trim_end_matches(['?', '.', ':'])
                .split(' ')
                .collect();
            let number = |i: usize| words[i].parse::<usize>().expect("a number");
            let expected = match words.as_slice() {
                ["Count", "up", "in", "ones", "from", _] => {
                    let from = number(5);
                    format!("{} {} {}", from + 1, from + 2, from + 3)
                }
                ["Count", "down", "in", "tens", "from", _] => {
                    let from = number(5);
                    format!("{} {} {}", from - 10, from - 20, from - 30)
                }
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
