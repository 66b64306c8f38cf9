//! The promises of every transport, as tests.
//!
//! [`messages`] are the promises of a [`Transport`](burn_dist_comm::Transport) by itself. [`BETWEEN_PROCESSES`] are those of
//! ranks that communicate over it: a function connects them, and each promise is kept with some number of ranks.

#[cfg(test)]
mod chaos;
mod faults;
pub mod messages;
mod reference;
#[cfg(test)]
mod suites;
mod values;

use burn_dist_comm::{Block, Call, Collective, Communicator, Group, Lane, Strided, elements};
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;
use reference::{Random, expected, fill, input_bytes, reduce};
use std::time::Duration;

/// Returns the endpoints of this many ranks, whose calls give up after this long.
pub type Connect = fn(usize, Duration) -> Vec<Box<dyn Communicator>>;

/// Longer than any call of these tests needs on a busy machine: whoever waits this long hangs.
pub const PATIENT: Duration = Duration::from_secs(20);

/// Runs one thread per rank and returns what each gives.
pub fn on_ranks<C: Send, T: Send>(ranks: Vec<C>, body: impl Fn(C) -> T + Sync) -> Vec<T> {
    side_by_side(ranks, body)
}

/// Runs one thread per case and returns what each gives: for cases that wait more than they compute.
pub fn side_by_side<C: Send, T: Send>(
    cases: impl IntoIterator<Item = C>,
    body: impl Fn(C) -> T + Sync,
) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> = cases
            .into_iter()
            .map(|case| scope.spawn(move || body(case)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

fn block(bytes: &[u8]) -> Block {
    // Wide elements keep the block aligned for every dtype.
    let mut words = vec![0_u128; bytes.len().div_ceil(16)];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(16)) {
        let mut full = [0; 16];
        full[..chunk.len()].copy_from_slice(chunk);
        *word = u128::from_ne_bytes(full);
    }
    Block::new(elements(words), 0..bytes.len()).unwrap()
}

/// A call whose result is of no use: whoever waits for it waits for all members.
fn barrier(group: &Group) -> Call {
    let parts = Strided::flat(vec![1; group.len()]);
    Call::all_gather(group, DType::U8, parts, block(&[0]))
}

/// A collective with the inputs and the expected outputs of all members.
#[derive(Debug)]
struct Case {
    group: Group,
    lane: Lane,
    dtype: DType,
    collective: Collective,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    axes: Vec<usize>,
}

impl Case {
    fn new(group: &Group, dtype: DType, collective: Collective, random: &mut Random) -> Self {
        let inputs: Vec<Vec<u8>> = (0..group.len())
            .map(|member| {
                let bytes = input_bytes(&collective, group, member).unwrap_or(0);
                let mut input = fill(dtype, bytes.div_ceil(dtype.size()), random);
                input.truncate(bytes);
                input
            })
            .collect();
        let outputs = expected(&collective, dtype, group, &inputs);
        Self {
            group: group.clone(),
            lane: Lane(0),
            dtype,
            collective,
            inputs,
            outputs,
            axes: Vec::new(),
        }
    }

    /// Reduces over axes of these sizes, one after the other.
    fn axis_by_axis(mut self, op: ReduceOp, axes: &[usize]) -> Self {
        let mut terms = self.inputs.clone();
        for &size in axes.iter().rev() {
            let reduced = terms
                .chunks(size)
                .map(|terms| reduce(self.dtype, op, terms));
            terms = reduced.collect();
        }
        self.axes = axes.to_vec();
        self.outputs = vec![terms.remove(0); self.inputs.len()];
        self
    }

    /// The call of `member`.
    fn call(&self, member: usize) -> Call {
        let has_input = input_bytes(&self.collective, &self.group, member).is_some();
        let collective = match (&self.collective, member) {
            // A transfer is written as its sender's half.
            (Collective::Send { bytes }, 1) => Collective::Recv { bytes: *bytes },
            (collective, _) => collective.clone(),
        };
        Call::new(
            &self.group,
            self.dtype,
            collective,
            has_input.then(|| block(&self.inputs[member])),
        )
        .on_lane(self.lane)
        .axis_by_axis(self.axes.clone())
    }

    fn verify(&self, member: usize, output: &[u8]) {
        let wanted = &self.outputs[member];
        if output != wanted {
            let at = output.iter().zip(wanted).position(|(a, b)| a != b);
            panic!(
                "member {member} of {:?}, {}: {} bytes instead of {}, first difference at {at:?}",
                self.collective,
                self.dtype.name(),
                output.len(),
                wanted.len()
            );
        }
    }
}

/// Runs all cases, one after the other, on ranks of one communicator.
fn run_cases(connect: Connect, num_ranks: usize, cases: &[Case]) {
    on_ranks(connect(num_ranks, PATIENT), |comm| {
        for case in cases {
            if let Some(member) = case.group.member(comm.rank()) {
                let output = comm
                    .run(case.call(member))
                    .unwrap_or_else(|error| panic!("{:?}: {error}", case.collective));
                case.verify(member, &output);
            }
        }
    });
}

/// Hands the promises that do not need ranks to share memory to a macro, between other arguments.
macro_rules! promises_between_processes {
    ($macro:ident, [$($before:tt)*], [$($after:tt)*]) => {
        $macro!(
            $($before)*
            [
                values::every_collective_moves_every_dtype,
                values::every_reduction_is_that_of_a_plain_loop_bitwise,
                values::several_axes_are_reduced_one_after_the_other_bitwise,
                values::reduce_scatter_and_all_gather_are_all_reduce_bitwise,
                values::a_middle_dim_is_gathered_and_scattered_in_place,
                values::an_all_to_all_swaps_any_two_dims,
                values::shifts_bring_the_blocks_of_members_so_many_places_before,
                values::a_shift_and_the_shift_back_leave_every_block_with_its_owner,
                values::large_blocks_are_moved_and_reduced_alike,
                values::unaligned_inputs_are_reduced_alike,
                values::nan_wins_every_minimum_and_maximum,
                values::groups_and_lanes_are_independent_sequences,
                values::opposite_orders_on_different_groups_do_not_block,
                values::a_send_does_not_wait_for_its_receiver,
                values::a_dropped_call_still_takes_place,
                values::counters_follow_their_formulae,
                faults::an_abort_reaches_who_waits_and_who_comes_later,
                faults::a_call_that_contradicts_itself_says_why,
                faults::a_shift_that_members_describe_differently_stops_them,
                faults::the_flight_record_shows_what_was_not_finished,
            ]
            $($after)*
        );
    };
}

/// Hands the promises that need ranks to share memory, or to see each other at once, to a macro, as above.
macro_rules! promises_in_one_process {
    ($macro:ident, [$($before:tt)*], [$($after:tt)*]) => {
        $macro!(
            $($before)*
            [
                values::values_are_exchanged_in_the_order_of_the_group,
                faults::a_mismatch_names_both_calls_to_every_member,
                faults::a_late_rank_is_named,
                faults::a_rank_that_leaves_is_named_at_once,
                faults::the_first_error_wins,
                faults::an_unsupported_reduction_is_an_error,
            ]
            $($after)*
        );
    };
}
#[cfg(test)]
use {promises_between_processes, promises_in_one_process};

macro_rules! table {
    ($(#[$doc:meta])* $name:ident, [$($module:ident :: $promise:ident),* $(,)?]) => {
        $(#[$doc])*
        pub const $name: &[(&str, fn(Connect))] = &[
            $((stringify!($promise), $module::$promise)),*
        ];
    };
}
promises_between_processes!(
    table,
    [
        /// The promises of ranks in several processes, by name.
        BETWEEN_PROCESSES,
    ],
    []
);
promises_in_one_process!(
    table,
    [
        /// The promises of ranks in one process besides, by name.
        IN_ONE_PROCESS,
    ],
    []
);
