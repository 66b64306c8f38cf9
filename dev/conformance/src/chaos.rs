//! Programs under delays, reordering and killed ranks, from seeds.

use super::reference::{Random, shift_by};
use super::{Case, PATIENT};
use burn_dist_comm::{
    AllToAll, Chaos, Collective, CommError, Communicator, Group, Lane, LocalHub, LocalOptions,
    Strided, chunk_sizes,
};
use burn_dist_mesh::DType;
use burn_dist_mesh::Rank;
use burn_dist_mesh::ReduceOp;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A program of one seed: the same calls on all ranks, and for each rank an order in which it waits.
struct Program {
    num_ranks: usize,
    cases: Vec<Case>,
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let num_ranks = 2 + random.below(3);
        let cases = (0..4 + random.below(9))
            .map(|_| Self::case(num_ranks, &mut random))
            .collect();
        Self { num_ranks, cases }
    }

    fn case(num_ranks: usize, random: &mut Random) -> Case {
        let mut ranks: Vec<Rank> = (0..num_ranks as u32).map(Rank).collect();
        for i in (1..ranks.len()).rev() {
            ranks.swap(i, random.below(i + 1));
        }
        ranks.truncate(1 + random.below(num_ranks));
        let group = Group::new(ranks).unwrap();
        let k = group.len();
        let root = group.ranks()[random.below(k)];
        let op = [ReduceOp::Sum, ReduceOp::Max][random.below(2)];
        // Some are large enough to be shared out.
        let num = if random.below(4) == 0 {
            20_000 + random.below(20_000)
        } else {
            random.below(40)
        };
        let bytes = num * 4;
        let parts = Strided::chunked(1 + random.below(3), num, 4, k);
        let sizes = chunk_sizes(bytes, k).into();
        let collective = match random.below(8) {
            0 => Collective::AllGather(parts),
            1 => Collective::ReduceScatter { op, parts },
            2 | 3 => Collective::AllReduce { op, bytes },
            4 => Collective::AllToAll(AllToAll {
                shape: vec![num, 3, 2].into(),
                split: (0, chunk_sizes(num, k).into()),
                concat: (1, chunk_sizes(3, k).into()),
                elem_bytes: 4,
            }),
            5 if k == 2 => Collective::Send { bytes },
            6 if k > 1 => Collective::Shift {
                by: shift_by(k, random),
                sizes,
            },
            _ => Collective::Broadcast { root, bytes },
        };
        Case {
            lane: Lane(random.below(2) as u16),
            ..Case::new(&group, DType::F32, collective, random)
        }
    }

    /// Runs the program; the errors that stopped ranks, by rank.
    fn run(&self, chaos: Chaos) -> Vec<Option<CommError>> {
        let seed = chaos.seed;
        let options = LocalOptions {
            timeout: PATIENT,
            chaos: Some(chaos),
            ..Default::default()
        };
        let ranks = LocalHub::connect(self.num_ranks, options).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|comm| scope.spawn(move || self.run_rank(&comm, seed).err()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    fn run_rank(&self, comm: &impl Communicator, seed: u64) -> Result<(), CommError> {
        let mut random = Random::new(seed ^ u64::from(comm.rank().0) << 40);
        let mut pending = Vec::new();
        for case in &self.cases {
            if let Some(member) = case.group.member(comm.rank()) {
                pending.push((case, member, comm.start(case.call(member))?));
            }
            while !pending.is_empty() && random.below(2) == 0 {
                let (case, member, call) = pending.swap_remove(random.below(pending.len()));
                case.verify(member, &call.wait()?);
            }
        }
        while !pending.is_empty() {
            let (case, member, call) = pending.swap_remove(random.below(pending.len()));
            case.verify(member, &call.wait()?);
        }
        Ok(())
    }
}

/// Runs `body` for all seeds; a failure says which seed repeats it.
fn for_seeds(seeds: std::ops::Range<u64>, body: impl Fn(u64)) {
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(seed))) {
            eprintln!(
                "chaos seed {seed} failed; repeat it by running only this seed: for_seeds({seed}..{})",
                seed + 1
            );
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn programs_give_the_same_results_under_delays_and_reordering() {
    for_seeds(0..200, |seed| {
        let errors = Program::new(seed).run(Chaos::new(seed));
        assert!(errors.iter().all(Option::is_none), "{errors:?}");
    });
}

#[test]
fn a_killed_rank_stops_everyone_with_one_error() {
    let mut num_killed = 0;
    for seed in 1000..1150 {
        for_seeds(seed..seed + 1, |seed| {
            let program = Program::new(seed);
            let victim = Rank((seed % program.num_ranks as u64) as u32);
            let errors = program.run(Chaos::new(seed).with_kill(victim, seed % 5));
            // Whoever had finished before is fine; all others, the victim among them, tell the same.
            let texts: Vec<String> = errors.iter().flatten().map(ToString::to_string).collect();
            let is_killed = errors[victim.0 as usize].is_some();
            assert_eq!(is_killed, !texts.is_empty(), "{texts:?}");
            for text in &texts {
                assert_eq!(text, &texts[0]);
                assert!(
                    text.contains(&format!(
                        "rank {} was killed at its call {} by chaos seed {seed}",
                        victim.0,
                        seed % 5
                    )),
                    "{text}"
                );
            }
        });
        let program = Program::new(seed);
        let victim = Rank((seed % program.num_ranks as u64) as u32);
        let num_calls = program
            .cases
            .iter()
            .filter(|case| case.group.member(victim).is_some())
            .count();
        num_killed += usize::from(num_calls as u64 > seed % 5);
    }
    assert!(
        num_killed > 100,
        "most programs are long enough for the kill: {num_killed}"
    );
}
