//! Between buffers of communicators and Burn's bytes, without a copy.
//!
//! A result that ranks share has to be one reference-counted buffer: Flex writes in place into what it alone holds, and
//! bytes made anew around the same memory by each rank would all look as if they were alone. So a hub makes each output
//! Burn's bytes once, before the ranks get it.

use std::sync::Arc;

use burn_std::Bytes;

use crate::burn::Pooled;
use crate::comm::{PoolBuffer, PoolMemory, SharedBuffer, downcast};

/// Makes an output Burn's bytes, which give the memory back to its pool.
pub(super) fn share(output: PoolBuffer) -> SharedBuffer {
    let len = output.len();
    // SAFETY: these bytes of the memory are initialised.
    unsafe { of_pool(output.into_memory(), len) }
}

/// Makes the first bytes of memory Burn's, which give the memory back to its pool.
///
/// # Safety
/// These bytes are initialised.
pub(super) unsafe fn of_pool(memory: PoolMemory, len: usize) -> Arc<Bytes> {
    // SAFETY: as the caller promises.
    Arc::new(unsafe { Bytes::from_controller(Box::new(Pooled(memory)), len) })
}

/// Returns an output of a hub that makes them by [`share`], or was passed by a rank, as Burn's bytes; a copy of any
/// other.
pub(super) fn of_burn(output: SharedBuffer) -> Arc<Bytes> {
    downcast(output).unwrap_or_else(|other| Arc::new(Bytes::from_bytes_vec(other.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::{
        Block, Call, Communicator, Group, LocalComm, LocalHub, LocalOptions, Pending, Pool,
        Strided, World,
    };
    use crate::mesh::{DType, Rank, ReduceOp};
    use burn_backend::ops::FloatTensorOps;
    use burn_flex::{Flex, FlexTensor, Layout};

    fn options() -> LocalOptions {
        LocalOptions {
            share: Some(share),
            ..LocalOptions::default()
        }
    }

    fn floats(num: usize) -> Arc<Bytes> {
        Arc::new(Bytes::from_elems(vec![1.5_f32; num]))
    }

    /// Returns the outputs of two ranks, with the bytes that they passed.
    fn outputs(ranks: Vec<LocalComm>, call: impl Fn(Rank) -> Call) -> Vec<Arc<Bytes>> {
        let start = |comm: &LocalComm| comm.start(call(comm.rank())).expect("a call");
        let started: Vec<_> = ranks.iter().map(start).collect();
        let wait = |pending: Pending<SharedBuffer>| {
            let output = pending.wait().expect("both are there");
            let address = output.as_ptr();
            let bytes = of_burn(output);
            assert_eq!(bytes.as_ptr(), address, "nothing is copied");
            bytes
        };
        started.into_iter().map(wait).collect()
    }

    fn tensor(bytes: &Arc<Bytes>) -> FlexTensor {
        let layout = Layout::contiguous([bytes.len() / 4].into());
        FlexTensor::from_arc(Arc::clone(bytes), layout, burn_std::DType::F32)
    }

    /// Asserts that ranks hold one buffer, which Flex does not write into until one of them holds it alone.
    fn assert_shared(mut results: Vec<Arc<Bytes>>) {
        assert!(Arc::ptr_eq(&results[0], &results[1]));
        let (before, address) = (results[1].to_vec(), results[1].as_ptr());
        let mine = tensor(&results.remove(0));
        let negated = Flex::float_neg(mine);
        assert_ne!(negated.bytes().as_ptr(), address);
        assert_eq!(results[0][..], before);
        let alone = tensor(&results[0]);
        drop(results);
        assert_eq!(Flex::float_neg(alone).bytes().as_ptr(), address);
    }

    #[test]
    fn ranks_share_a_result_and_none_writes_into_it() {
        let world = Group::world(2).expect("two ranks");
        for num in [4, 100_000] {
            let parts = Strided::flat(vec![4 * num; 2]);
            let ranks = || LocalHub::connect(2, options()).expect("two ranks");
            let gather = |_| Call::all_gather(&world, DType::F32, parts.clone(), floats(num));
            assert_shared(outputs(ranks(), gather));
            let reduce = |_| Call::all_reduce(&world, DType::F32, ReduceOp::Sum, floats(num));
            assert_shared(outputs(ranks(), reduce));
        }
    }

    #[test]
    fn a_result_can_be_changed_by_who_makes_it_its_own() {
        let world = Group::world(2).expect("two ranks");
        let ranks = LocalHub::connect(2, options()).expect("two ranks");
        let reduce = |_| Call::all_reduce(&world, DType::F32, ReduceOp::Sum, floats(50_000));
        let [mut mine, other] = <[_; 2]>::try_from(outputs(ranks, reduce)).expect("two");
        Arc::make_mut(&mut mine)[0] = 77;
        assert_eq!((mine[0], other[0]), (77, 0));
        assert_eq!(mine[1..], other[1..]);
    }

    #[test]
    fn an_input_that_is_handed_on_is_the_giver_s() {
        let world = Group::world(2).expect("two ranks");
        let input = floats(1000);
        let broadcast = |rank: Rank| {
            let input = (rank == Rank(0)).then(|| Block::from(Arc::clone(&input)));
            Call::broadcast(&world, DType::F32, Rank(0), 4000, input)
        };
        let in_one_process = LocalHub::connect(2, options()).expect("two ranks");
        let worlds = World::simulated(2).into_iter();
        let connected = worlds.map(|world| world.connect(2, options()).expect("a rank"));
        for ranks in [in_one_process, connected.flatten().collect()] {
            let results = outputs(ranks, broadcast);
            assert!(results.iter().all(|result| Arc::ptr_eq(result, &input)));
            let negated = Flex::float_neg(tensor(&results[1]));
            assert_ne!(negated.bytes().as_ptr(), input.as_ptr());
        }
    }

    #[test]
    fn memory_grows_and_goes_back_to_its_pool() {
        let pool = Pool::new(1 << 20);
        let output = downcast::<PoolBuffer>(pool.copy_of(&[7; 100_000])).expect("a plain pool");
        let output = Arc::into_inner(output).expect("not shared");
        let address = output.as_ptr();
        let bytes = of_burn(share(output));
        assert_eq!(bytes.as_ptr(), address);
        let mut longer = Arc::into_inner(bytes).expect("not shared");
        longer.extend_from_byte_slice(&[8; 100_000]);
        assert!(longer[..100_000] == [7; 100_000] && longer[100_000..] == [8; 100_000]);
        assert_eq!(longer.clone(), longer);
        // What it has outgrown is used again.
        assert_eq!(pool.copy_of(&[9; 100_000]).as_ptr(), address);
    }
}
