//! How much later each host starts its calls than the others, by its own clock.
//!
//! Hosts that take part in the same calls are compared pair by pair, by the first rank of each to make a call, and the
//! median of all calls counts: so a rank that is late by itself changes nothing as long as its host has another one.
//! The difference of a pair is the sum along any path between the two, so one path suffices.

use std::collections::BTreeMap;

/// The findings about a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// How much later it starts than the middle one of those with which it takes part in calls, in microseconds.
    pub late_us: i128,
    /// Calls that this was taken from.
    pub num_calls: usize,
}

/// Returns the median; the lower one of two. `None` if there are no values.
pub(super) fn median<T: Copy + Ord>(values: impl IntoIterator<Item = T>) -> Option<T> {
    let mut sorted: Vec<T> = values.into_iter().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

/// Returns the clock of every host that takes part in calls with others. A call is the hosts of its members, and when
/// each of them began.
pub(super) fn clocks<'a>(
    calls: impl Iterator<Item = impl Iterator<Item = (&'a str, u64)>>,
) -> BTreeMap<&'a str, Clock> {
    let mut samples: BTreeMap<(&str, &str), Vec<i128>> = BTreeMap::new();
    for call in calls {
        let mut first: BTreeMap<&str, u64> = BTreeMap::new();
        for (host, start) in call {
            let earliest = first.entry(host).or_insert(start);
            *earliest = start.min(*earliest);
        }
        let mut hosts = first.into_iter();
        let Some((one, began)) = hosts.next() else {
            continue;
        };
        for (other, start) in hosts {
            let later = i128::from(start) - i128::from(began);
            samples.entry((one, other)).or_default().push(later);
        }
    }
    let mut num_calls: BTreeMap<&str, usize> = BTreeMap::new();
    let mut pairs = Vec::new();
    for ((one, other), later) in samples {
        for host in [one, other] {
            *num_calls.entry(host).or_default() += later.len();
        }
        pairs.extend(median(later).map(|later| (one, other, later)));
    }
    let mut clocks = BTreeMap::new();
    // Hosts that no calls connect are not compared.
    while let Some(&(one, ..)) = pairs.first() {
        let mut late: BTreeMap<&str, i128> = BTreeMap::from([(one, 0)]);
        let mut num_left = usize::MAX;
        while pairs.len() < num_left {
            num_left = pairs.len();
            pairs.retain(|&(one, other, later)| {
                match (late.get(one).copied(), late.get(other).copied()) {
                    (Some(us), None) => late.insert(other, us + later),
                    (None, Some(us)) => late.insert(one, us - later),
                    (Some(_), Some(_)) => None,
                    (None, None) => return true,
                };
                false
            });
        }
        let middle = median(late.values().copied()).unwrap_or(0);
        clocks.extend(late.into_iter().map(|(host, us)| {
            let clock = Clock {
                late_us: us - middle,
                num_calls: num_calls.get(host).copied().unwrap_or(0),
            };
            (host, clock)
        }));
    }
    clocks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `num` calls of hosts with these clocks, each with a rank on every one of them.
    fn calls<'a>(num: u64, hosts: &[(&'a str, u64)]) -> Vec<Vec<(&'a str, u64)>> {
        let call = |at: u64| {
            let starts = hosts.iter().map(|(host, late)| (*host, 1000 * at + late));
            starts.collect()
        };
        (0..num).map(call).collect()
    }

    fn late(calls: Vec<Vec<(&str, u64)>>) -> Vec<(String, i128, usize)> {
        let clocks = clocks(calls.into_iter().map(Vec::into_iter));
        let of = |(host, clock): (&str, Clock)| (host.to_string(), clock.late_us, clock.num_calls);
        clocks.into_iter().map(of).collect()
    }

    #[test]
    fn a_constant_offset_is_found_along_any_path() {
        let of = |host: &str, us: i128, num: usize| (host.to_string(), us, num);
        assert_eq!(
            late(calls(3, &[("a", 0), ("b", 7)])),
            [of("a", 0, 3), of("b", 7, 3)]
        );
        // The one that is late is notified, not the one that is early.
        assert_eq!(
            late(calls(3, &[("a", 7), ("b", 0)])),
            [of("a", 7, 3), of("b", 0, 3)]
        );
        // Neighbours only, in an order in which neither end is known at first; and two that have nothing to do with
        // them.
        let mut pairs = calls(1, &[("a", 0), ("d", 30)]);
        pairs.extend(calls(1, &[("b", 10), ("c", 20)]));
        pairs.extend(calls(2, &[("c", 20), ("d", 30)]));
        pairs.extend(calls(1, &[("x", 500), ("y", 503)]));
        assert_eq!(
            late(pairs),
            [
                of("a", -10, 1),
                of("b", 0, 1),
                of("c", 10, 3),
                of("d", 20, 3),
                of("x", 0, 1),
                of("y", 3, 1)
            ]
        );
    }

    #[test]
    fn one_late_rank_is_not_its_host() {
        // The second rank of b is late in every call, and the first one once.
        let call = |at: u64| {
            let late = if at == 1 { 900 } else { 5 };
            let began = 1000 * at;
            vec![("a", began), ("b", began + late), ("b", began + 950)]
        };
        let found = late((0..3).map(call).collect());
        assert_eq!(found[1], ("b".to_string(), 5, 3));
    }

    #[test]
    fn wild_times_are_no_panic() {
        let found = late(vec![
            vec![("a", u64::MAX), ("b", 0)],
            vec![("a", 0)],
            vec![],
        ]);
        assert_eq!(found[0], ("a".to_string(), i128::from(u64::MAX), 1));
    }
}
