//! Collectives of a few members in every placement on a few processes, without a thread or a transport.

use super::*;
use crate::AllToAll;
use crate::buffer::Pool;
use crate::elements;
use burn_dist_mesh::{Rank, ReduceOp};

fn memory() -> Memory {
    Memory::new(Pool::new(1 << 20))
}

fn block(member: usize, bytes: usize) -> Block {
    let floats = (0..bytes / 4).map(|at| ((at * 31 + member * 17) % 101) as f32 * 0.37 - 5.0);
    Block::from(elements(floats.collect::<Vec<f32>>()))
}

/// Collectives of `k` members, each with the sizes of the inputs.
fn collectives(k: usize) -> Vec<(Collective, Vec<Option<usize>>)> {
    let op = ReduceOp::Sum;
    let parts = Strided {
        outer: 3,
        mid_sizes: (0..k).map(|member| member + 1).collect(),
        inner_bytes: 8,
    };
    let (whole, root) = (parts.whole_bytes(), Rank(1));
    let part = |member: usize| parts.part_bytes(member);
    let only = |bytes: usize| {
        let is_root = |member| (member == 1).then_some(bytes);
        (0..k).map(is_root).collect::<Vec<_>>()
    };
    let sizes: Arc<[usize]> = (0..k).map(|member| 8 * member).collect();
    vec![
        (
            Collective::AllGather(parts.clone()),
            (0..k).map(|member| Some(part(member))).collect(),
        ),
        (
            Collective::ReduceScatter {
                op,
                parts: parts.clone(),
            },
            vec![Some(whole); k],
        ),
        (Collective::AllReduce { op, bytes: 80 }, vec![Some(80); k]),
        // In two rounds, where there are more than two members.
        (
            Collective::AllReduce { op, bytes: 20_000 },
            vec![Some(20_000); k],
        ),
        (Collective::Broadcast { root, bytes: 40 }, only(40)),
        (
            Collective::Shift {
                by: 1,
                sizes: sizes.clone(),
            },
            sizes.iter().map(|size| Some(*size)).collect(),
        ),
        (
            Collective::AllToAll(AllToAll {
                shape: vec![3, parts.mid(), 2].into(),
                split: (0, chunk_sizes(3, k).into()),
                concat: (1, parts.mid_sizes.clone()),
                elem_bytes: 4,
            }),
            (0..k).map(|member| Some(part(member))).collect(),
        ),
    ]
}

/// A message in transit: receiver, round, member, block, and whether it goes straight to its region.
type Sent = (u32, u8, usize, Block);

/// Runs a collective in as many processes as `process_of` names; `pick` chooses the message that arrives next.
fn run(
    operation: &Operation,
    group: &Group,
    process_of: &[u32],
    inputs: &[Option<Block>],
    mut pick: impl FnMut(usize) -> usize,
) -> Vec<Block> {
    let num_processes = process_of.iter().max().map_or(0, |last| last + 1);
    let others: Vec<u32> = (0..num_processes).collect();
    let memory = memory();
    let mut outputs = vec![None; process_of.len()];
    let mut on_the_way: Vec<Sent> = Vec::new();
    let mut running: Vec<Option<Execution>> = Vec::new();
    let start = |execution: &mut Execution, process: u32, on_the_way: &mut Vec<Sent>| {
        let others: Vec<u32> = others
            .iter()
            .copied()
            .filter(|other| *other != process)
            .collect();
        let round = execution.round();
        execution.start(&others, &memory, |to, member, block| {
            on_the_way.push((to, round, member, block));
        });
    };
    for process in 0..num_processes {
        let mine = inputs.iter().zip(process_of);
        let mine = mine.map(|(input, of)| input.clone().filter(|_| *of == process));
        let mut execution = Execution::new(
            operation.clone(),
            group.clone(),
            process_of.to_vec(),
            process,
            mine.collect(),
        );
        start(&mut execution, process, &mut on_the_way);
        running.push(Some(execution));
    }
    loop {
        for (process, running) in running.iter_mut().enumerate() {
            while let Some(mut execution) = running.take_if(|execution| execution.is_complete()) {
                match execution
                    .finish(&memory)
                    .expect("all parts have their sizes")
                {
                    Some(work) => {
                        while work.run_next().is_some() {}
                        for (member, of) in process_of.iter().enumerate() {
                            if *of as usize == process {
                                let output = work.output(member).expect("all is done");
                                outputs[member] = Some(Block::from(Arc::clone(output)));
                            }
                        }
                    }
                    None => {
                        start(&mut execution, process as u32, &mut on_the_way);
                        *running = Some(execution);
                    }
                }
            }
        }
        // Rounds that a process is not in yet come later.
        let ready: Vec<usize> = (0..on_the_way.len())
            .filter(|at| {
                let (to, round, ..) = &on_the_way[*at];
                let execution = running[*to as usize].as_ref();
                execution.is_some_and(|execution| execution.round() == *round)
            })
            .collect();
        if ready.is_empty() {
            break;
        }
        let (to, _, member, block) = on_the_way.remove(ready[pick(ready.len())]);
        let execution = running[to as usize].as_mut().expect("it is ready");
        assert!(execution.awaits(member));
        let block = match execution.region(member, block.len()) {
            Some(mut region) => {
                region.fill(block.as_slice());
                Block::empty()
            }
            None => block,
        };
        execution.arrive(member, block);
    }
    assert!(on_the_way.is_empty() && running.iter().all(Option::is_none));
    outputs
        .into_iter()
        .map(|output| output.expect("every member has one"))
        .collect()
}

/// Every placement of `k` members on at most `num` processes that uses the first ones.
fn placements(k: usize, num: u32) -> Vec<Vec<u32>> {
    let all = 0..num.pow(k as u32);
    let digits = all.map(|code| (0..k).map(|at| code / num.pow(at as u32) % num).collect());
    digits
        .filter(|placement: &Vec<u32>| {
            let last = placement.iter().max().copied().unwrap_or(0);
            (0..=last).all(|process| placement.contains(&process))
        })
        .collect()
}

#[test]
fn where_members_live_changes_no_bit() {
    for k in [2, 3, 4] {
        let group = Group::world(k).unwrap();
        for (collective, sizes) in collectives(k) {
            let operation = Operation {
                dtype: DType::F32,
                collective,
                axes: Arc::new([]),
            };
            let inputs: Vec<Option<Block>> = (0..k)
                .map(|member| sizes[member].map(|bytes| block(member, bytes)))
                .collect();
            let whole = work(operation.clone(), &group, inputs.clone(), &memory());
            while whole.run_next().is_some() {}
            for placement in placements(k, 3) {
                for seed in 0..6_usize {
                    let mut state = seed;
                    let outputs = run(&operation, &group, &placement, &inputs, |num| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        (state >> 33) % num
                    });
                    for (member, output) in outputs.iter().enumerate() {
                        let expected = whole.output(member).expect("all is done");
                        assert!(
                            output.as_slice() == &expected[..],
                            "member {member} of {:?} on {placement:?}",
                            operation.collective
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_part_of_another_size_is_seen() {
    let group = Group::world(2).unwrap();
    let operation = Operation {
        dtype: DType::U8,
        collective: Collective::AllGather(Strided::flat(vec![4, 4])),
        axes: Arc::new([]),
    };
    let inputs = vec![Some(block(0, 4)), None];
    let mut execution = Execution::new(operation, group, vec![0, 1], 0, inputs);
    let memory = memory();
    execution.start(&[1], &memory, |process, member, block| {
        assert_eq!((process, member, block.len()), (1, 0, 4));
    });
    assert!(execution.region(1, 3).is_none() && execution.region(0, 4).is_none());
    execution.arrive(1, block(1, 8));
    assert!(execution.finish(&memory).is_err());
}
