//! Sums as NCCL may make them.

use super::super::op::{Element, Fold};

/// Adds up in the reverse order of the members, and halves in halves: what NCCL may do.
pub(super) fn reduced(element: Element, fold: Fold, terms: Vec<Vec<u8>>) -> Vec<u8> {
    macro_rules! fold {
        ($type:ty, $add:expr, $mul:expr, $over:expr) => {{
            let members = terms.len();
            let mut columns = terms.iter().rev().map(|term| {
                let (chunks, rest) = term.as_chunks::<{ size_of::<$type>() }>();
                assert!(rest.is_empty());
                chunks
                    .iter()
                    .map(|chunk| <$type>::from_ne_bytes(*chunk))
                    .collect::<Vec<_>>()
            });
            let mut sum = columns.next().expect("a member");
            for column in columns {
                for (a, b) in sum.iter_mut().zip(column) {
                    *a = match fold {
                        Fold::Sum | Fold::Avg => $add(*a, b),
                        Fold::Prod => $mul(*a, b),
                        Fold::Max => (*a).max(b),
                        Fold::Min => (*a).min(b),
                    };
                }
            }
            if fold == Fold::Avg {
                for a in &mut sum {
                    *a = $over(*a, members);
                }
            }
            sum.iter().flat_map(|a| a.to_ne_bytes()).collect()
        }};
    }
    macro_rules! int {
        ($type:ty) => {
            fold!(
                $type,
                <$type>::wrapping_add,
                <$type>::wrapping_mul,
                |a: $type, n| a / n as $type
            )
        };
    }
    macro_rules! float {
        ($type:ty) => {
            fold!(
                $type,
                |a: $type, b| a + b,
                |a: $type, b| a * b,
                |a: $type, n| { a / n as $type }
            )
        };
    }
    macro_rules! half {
        ($type:ty) => {
            fold!(
                $type,
                |a: $type, b| a + b,
                |a: $type, b| a * b,
                |a: $type, n| { a / <$type>::from_f32(n as f32) }
            )
        };
    }
    match element {
        Element::I8 => int!(i8),
        Element::U8 => int!(u8),
        Element::I32 => int!(i32),
        Element::U32 => int!(u32),
        Element::I64 => int!(i64),
        Element::U64 => int!(u64),
        Element::F16 => half!(half::f16),
        Element::BF16 => half!(half::bf16),
        Element::F32 => float!(f32),
        Element::F64 => float!(f64),
    }
}
