//! Functions of f64 at places that matter, against values of mpmath (2400 bits, rounded to the nearest f64): in
//! `double.txt` each has a line with its operands and its value.

use super::Double;

/// The most by which a function may differ from the nearest f64, in units in the last place: it is off by less than one
/// and a half.
const UNITS: u64 = 1;

fn of(name: &str, x: f64, y: f64) -> f64 {
    match name {
        "exp" => Double::exp(x),
        "log" => Double::log(x),
        "log1p" => Double::log1p(x),
        "sin" => Double::sin(x),
        "cos" => Double::cos(x),
        "tan" => Double::tan(x),
        "sinh" => Double::sinh(x),
        "cosh" => Double::cosh(x),
        "tanh" => Double::tanh(x),
        "asin" => Double::asin(x),
        "acos" => Double::acos(x),
        "atan" => Double::atan(x),
        "asinh" => Double::asinh(x),
        "acosh" => Double::acosh(x),
        "atanh" => Double::atanh(x),
        "erf" => Double::erf(x),
        "sigmoid" => Double::sigmoid(x),
        "pow" => Double::pow(x, y),
        "atan2" => Double::atan2(x, y),
        name => panic!("no function is named {name}"),
    }
}

#[test]
fn functions_of_f64_are_near_exact_ones() {
    let mut worst = std::collections::BTreeMap::new();
    for line in include_str!("double.txt").lines() {
        let (name, numbers) = line.split_once(' ').expect("a name and numbers");
        let numbers: Vec<f64> = (numbers.split(' '))
            .map(|number| number.parse().expect("a number"))
            .collect();
        let (operands, expected) = numbers.split_at(numbers.len() - 1);
        let expected = expected[0];
        let found = of(name, operands[0], operands.last().copied().unwrap_or(0.0));
        let apart = found.to_bits().abs_diff(expected.to_bits());
        let of_function = worst.entry(name).or_insert((0, line));
        if found != expected && apart > of_function.0 {
            *of_function = (apart, line);
        }
    }
    assert_eq!(worst.len(), 19);
    let wrong: Vec<_> = (worst.iter())
        .filter(|(_, (apart, _))| *apart > UNITS)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
