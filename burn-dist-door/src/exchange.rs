//! Tensors that a thread takes out of Burn's records, and puts into them, in place of their data.
//!
//! An optimizer shows its state only as a record that is serialised, and a record reads every tensor to the host. While
//! a thread *takes*, such a read answers with a token instead, and the tensor is kept for the thread; while it *gives*,
//! a tensor made of a token is one that the thread has. A token is a few zeros and ones, which every element type
//! holds, so it survives all conversions of records.

#[cfg(not(burn_021))]
mod resident;

use std::any::Any;
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use burn_backend::DType;

use crate::data::*;
#[cfg(not(burn_021))]
pub(crate) use resident::tensor as resident_tensor;
#[cfg(not(burn_021))]
pub use resident::{Resident, Residents, SMALLEST, data_of, taking_residents};

/// A tensor of a mesh, without its kind.
pub type AnyTensor = Box<dyn Any + Send>;

/// Bits of a token: a number that only this exchange has, and the index of the tensor.
const NONCE_BITS: usize = 64;
const INDEX_BITS: usize = 32;

enum Exchange {
    Taking(Nonce, Vec<AnyTensor>),
    Giving(Nonce, Vec<Option<AnyTensor>>),
}

/// Tells the tokens of one exchange from data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(u64);

impl Nonce {
    fn new() -> Self {
        Self(RandomState::new().hash_one(()))
    }

    /// Returns the token of a tensor, with so many dims.
    pub fn token(self, index: usize, dims: usize) -> TensorData {
        let bits = (0..NONCE_BITS).map(|bit| self.0 >> bit & 1);
        let bits = bits.chain((0..INDEX_BITS).map(|bit| index as u64 >> bit & 1));
        let bits: Vec<f32> = bits.map(|bit| bit as f32).collect();
        let mut shape = vec![1; dims.max(1)];
        shape[0] = bits.len();
        TensorData::new(bits, shape)
    }

    /// Returns the index of the tensor, if `data` is a token of this exchange.
    pub fn index(self, data: &TensorData) -> Option<usize> {
        let is_token = data.num_elements() == NONCE_BITS + INDEX_BITS;
        if !is_token || matches!(data.dtype(), DType::QFloat(_)) {
            return None;
        }
        let bits: Vec<bool> = match data.dtype() {
            DType::Bool(_) => data.iter::<bool>().collect(),
            _ => data.iter::<f32>().map(|bit| bit != 0.0).collect(),
        };
        let number = |bits: &[bool]| {
            let bits = bits.iter().enumerate();
            bits.fold(0, |sum, (bit, is_set)| sum | u64::from(*is_set) << bit)
        };
        let (nonce, index) = bits.split_at(NONCE_BITS);
        (number(nonce) == self.0).then(|| number(index) as usize)
    }
}

thread_local! {
    static EXCHANGE: RefCell<Option<Exchange>> = const { RefCell::new(None) };
}

/// Ends the exchange also if `f` panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        EXCHANGE.set(None);
    }
}

fn during<T>(exchange: Exchange, f: impl FnOnce() -> T) -> (T, Option<Exchange>) {
    EXCHANGE.set(Some(exchange));
    let end = End;
    let result = f();
    let exchange = EXCHANGE.take();
    drop(end);
    (result, exchange)
}

/// Calls `f`, and returns the tensors that it read on this thread, in the order of the tokens that it got.
pub fn taking<T>(f: impl FnOnce() -> T) -> (T, Nonce, Vec<AnyTensor>) {
    let nonce = Nonce::new();
    match during(Exchange::Taking(nonce, Vec::new()), f) {
        (result, Some(Exchange::Taking(nonce, taken))) => (result, nonce, taken),
        (result, _) => (result, nonce, Vec::new()),
    }
}

/// Calls `f`, to which a tensor made on this thread of the token of `index` is `tensors[index]`.
pub fn giving<T>(tensors: Vec<AnyTensor>, f: impl FnOnce(Nonce) -> T) -> T {
    let nonce = Nonce::new();
    let tensors = tensors.into_iter().map(Some).collect();
    during(Exchange::Giving(nonce, tensors), || f(nonce)).0
}

/// Takes a tensor that is about to be read, and returns what to answer, if this thread takes tensors.
pub(crate) fn take(tensor: impl FnOnce() -> AnyTensor) -> Option<TensorData> {
    EXCHANGE.with_borrow_mut(|exchange| match exchange {
        Some(Exchange::Taking(nonce, taken)) => {
            taken.push(tensor());
            Some(nonce.token(taken.len() - 1, 1))
        }
        _ => None,
    })
}

/// Returns the tensor that `data` stands for, if this thread puts tensors in the place of data.
pub(crate) fn replaced<T: 'static>(data: &TensorData) -> Option<T> {
    EXCHANGE.with_borrow_mut(|exchange| match exchange {
        Some(Exchange::Giving(nonce, tensors)) => {
            let tensor = tensors.get_mut(nonce.index(data)?)?.take()?;
            tensor.downcast().ok().map(|tensor| *tensor)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_every_type() {
        use burn_std::BoolStore;
        let nonce = Nonce::new();
        let dtypes = [
            DType::F64,
            DType::F32,
            DType::F16,
            DType::BF16,
            DType::I64,
            DType::I8,
            DType::U8,
            DType::Bool(BoolStore::Native),
        ];
        for (index, dims) in [(0, 1), (1, 2), (70_000, 4), (u32::MAX as usize, 8)] {
            let token = nonce.token(index, dims);
            assert_eq!(token.shape().len(), dims);
            for dtype in dtypes {
                let stored = token.clone().convert_dtype(dtype);
                assert_eq!(nonce.index(&stored), Some(index), "{dtype:?}");
                let back = stored.convert_dtype(DType::F32);
                assert_eq!(nonce.index(&back), Some(index), "{dtype:?}");
            }
            assert_eq!(Nonce::new().index(&token), None);
        }
        assert_eq!(nonce.index(&TensorData::new(vec![1.0f32; 96], [96])), None);
        assert_eq!(nonce.index(&TensorData::new(vec![1.0f32; 3], [3])), None);
    }

    #[test]
    fn a_panic_ends_the_exchange() {
        let panicked = std::panic::catch_unwind(|| giving(Vec::new(), |_| panic!("on the way")));
        assert!(panicked.is_err());
        assert!(EXCHANGE.with_borrow(Option::is_none));
    }
}
