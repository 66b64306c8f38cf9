//! Where every [`OperationIr`] keeps its tensors and scalars.
//!
//! The declarations in `table` produce, from the same lines, the walk that
//! may write ([`visit_mut`]), the walk that only reads ([`visit_ref`]) and the names ([`kind_name`]), so that the three
//! cannot drift apart. Renaming ids, setting local shapes and patching scalars are visitors.
//!
//! Left out on purpose: what an op *means* (families say that), and options that are part of the op's identity, such as
//! a dim or the scale of an attention.

use burn_ir::{OperationIr, QuantizationParametersIr, ScalarIr, TensorIr};

use super::table;
use crate::burn::{global_scale, global_scale_mut};

/// Receives the tensors and scalars of an op and may change them.
///
/// # Order
/// Inputs first, then outputs, each in the order of [`OperationIr::inputs`] and [`OperationIr::outputs`]; then scalars.
/// Optional tensors (a bias, a mask) are visited when they are there.
pub trait OpVisitor {
    /// Visits a tensor that the op reads.
    fn input(&mut self, tensor: &mut TensorIr);
    /// Visits a tensor that the op makes.
    fn output(&mut self, tensor: &mut TensorIr);
    /// Visits a value that may change from step to step without changing the plan.
    ///
    /// These are the right-hand side of scalar ops, the value of `mask_fill` and `full`, the bounds of `clamp` (minimum
    /// first), what a hard sigmoid multiplies by and adds, and the epsilon of norms.
    fn scalar(&mut self, _scalar: &mut ScalarIr) {}
}

/// Receives the tensors and scalars of an op; the read-only twin of [`OpVisitor`].
pub trait OpReader<'a> {
    /// Visits a tensor that the op reads.
    fn input(&mut self, tensor: &'a TensorIr);
    /// Visits a tensor that the op makes.
    fn output(&mut self, tensor: &'a TensorIr);
    /// Visits a value that may change from step to step without changing the plan, see [`OpVisitor::scalar`].
    fn scalar(&mut self, _scalar: &ScalarIr) {}
}

/// Walks over the tensors and scalars of `op`, which `visitor` may change.
///
/// `Drop` has its tensor as an input, `Init` as an output. Does not allocate.
#[inline]
pub fn visit_mut<V: OpVisitor>(op: &mut impl Walk, visitor: &mut V) {
    op.walk_mut(visitor);
}

/// Walks over the tensors and scalars of `op`, in the order of [`visit_mut`]. Does not allocate.
#[inline]
pub fn visit_ref<'a, R: OpReader<'a>>(op: &'a impl Walk, reader: &mut R) {
    op.walk_ref(reader);
}

/// Returns the short name of an op: `add`, `mul_scalar`, `matmul`, `linear_x_backward`, `reshape`.
///
/// Float, int and bool variants of one op share its name. Every custom op is `custom`.
#[inline]
pub fn kind_name(op: &OperationIr) -> &'static str {
    op.kind()
}

/// The families of [`OperationIr`] with the names of their variants, in the order in which burn-ir declares the
/// families.
///
/// A test that wants to cover every op covers this list: a variant that is missing here does not compile.
pub const FAMILIES: &[(&str, &[&str])] = table::FAMILIES;

/// The name of a family, and of its kinds, that only a feature of burn-ir brings (`distributed`). Other crates of a
/// program may turn such features on; the recorder refuses the operations, and no visitor sees their tensors.
pub const UNKNOWN: &str = "unknown";

/// Returns the family of an op, as spelled in [`FAMILIES`], or [`UNKNOWN`].
#[inline]
pub fn family_name(op: &OperationIr) -> &'static str {
    table::label(op)
}

/// Returns the number of an op's kind in [`FAMILIES`], counted through: the same in every process of a program.
pub fn kind_number(op: &OperationIr) -> u16 {
    let (family, kind) = (family_name(op), kind_name(op));
    let before = FAMILIES.iter().take_while(|(name, _)| *name != family);
    let before: usize = before.map(|(_, kinds)| kinds.len()).sum();
    let kinds = FAMILIES.iter().find(|(name, _)| *name == family);
    let at = kinds.and_then(|(_, kinds)| kinds.iter().position(|name| *name == kind));
    (before + at.unwrap_or(0)) as u16
}

/// The number of what a program says of a value, beyond those of [`kind_number`].
pub(crate) const MARK_NUMBER: u16 = u16::MAX - 1;

/// The number of custom operations.
pub(crate) const CUSTOM_NUMBER: u16 = u16::MAX - 2;

/// The number of operations of float8 training.
pub(crate) const FLOAT8_NUMBER: u16 = u16::MAX - 3;

/// The number of operations on matrices that rest in 8 bits.
pub(crate) const INT8_NUMBER: u16 = u16::MAX - 4;

/// Returns the name of the kind with a number of [`kind_number`].
pub fn kind_of_number(number: u16) -> &'static str {
    match number {
        MARK_NUMBER => return "a mark on a value",
        CUSTOM_NUMBER => return "a custom operation",
        FLOAT8_NUMBER => return "an operation of float8 training",
        INT8_NUMBER => return "an operation on a matrix in 8 bits",
        _ => {}
    }
    let mut kinds = FAMILIES.iter().flat_map(|(_, kinds)| kinds.iter());
    kinds.nth(number.into()).unwrap_or(&"an unknown operation")
}

/// Something with tensors and scalars to walk over: an op, or the description of one.
pub trait Walk {
    /// See [`visit_mut`].
    fn walk_mut<V: OpVisitor>(&mut self, visitor: &mut V);
    /// See [`visit_ref`].
    fn walk_ref<'a, R: OpReader<'a>>(&'a self, reader: &mut R);
    /// See [`kind_name`].
    fn kind(&self) -> &'static str;
}

/// A field with tensors: one, perhaps one, or many. All of them are outputs, or all inputs.
///
/// Generic over visitors, not over what each operation does with a tensor: that would be compiled for each of its
/// fields.
pub(super) trait Tensors {
    fn each_mut<const OUTPUT: bool>(&mut self, visitor: &mut impl OpVisitor);
    fn each_ref<'a, const OUTPUT: bool>(&'a self, reader: &mut impl OpReader<'a>);
}

impl Tensors for TensorIr {
    #[inline]
    fn each_mut<const OUTPUT: bool>(&mut self, visitor: &mut impl OpVisitor) {
        match OUTPUT {
            true => visitor.output(self),
            false => visitor.input(self),
        }
    }
    #[inline]
    fn each_ref<'a, const OUTPUT: bool>(&'a self, reader: &mut impl OpReader<'a>) {
        match OUTPUT {
            true => reader.output(self),
            false => reader.input(self),
        }
    }
}

impl Tensors for Option<TensorIr> {
    #[inline]
    fn each_mut<const OUTPUT: bool>(&mut self, visitor: &mut impl OpVisitor) {
        if let Some(tensor) = self {
            tensor.each_mut::<OUTPUT>(visitor);
        }
    }
    #[inline]
    fn each_ref<'a, const OUTPUT: bool>(&'a self, reader: &mut impl OpReader<'a>) {
        if let Some(tensor) = self {
            tensor.each_ref::<OUTPUT>(reader);
        }
    }
}

impl Tensors for Vec<TensorIr> {
    #[inline]
    fn each_mut<const OUTPUT: bool>(&mut self, visitor: &mut impl OpVisitor) {
        for tensor in self {
            tensor.each_mut::<OUTPUT>(visitor);
        }
    }
    #[inline]
    fn each_ref<'a, const OUTPUT: bool>(&'a self, reader: &mut impl OpReader<'a>) {
        for tensor in self {
            tensor.each_ref::<OUTPUT>(reader);
        }
    }
}

impl Tensors for QuantizationParametersIr {
    #[inline]
    fn each_mut<const OUTPUT: bool>(&mut self, visitor: &mut impl OpVisitor) {
        self.scales.each_mut::<OUTPUT>(visitor);
        if let Some(tensor) = global_scale_mut(self) {
            tensor.each_mut::<OUTPUT>(visitor);
        }
    }
    #[inline]
    fn each_ref<'a, const OUTPUT: bool>(&'a self, reader: &mut impl OpReader<'a>) {
        self.scales.each_ref::<OUTPUT>(reader);
        if let Some(tensor) = global_scale(self) {
            tensor.each_ref::<OUTPUT>(reader);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::samples;
    use super::*;
    use burn_ir::{TensorId, TensorStatus};

    /// Everything a walk meets, in order.
    #[derive(Default, PartialEq, Debug)]
    struct Seen {
        inputs: Vec<TensorIr>,
        outputs: Vec<TensorIr>,
        scalars: Vec<ScalarIr>,
    }

    impl OpReader<'_> for Seen {
        fn input(&mut self, tensor: &TensorIr) {
            assert!(
                self.outputs.is_empty() && self.scalars.is_empty(),
                "inputs come first"
            );
            self.inputs.push(tensor.clone());
        }
        fn output(&mut self, tensor: &TensorIr) {
            assert!(self.scalars.is_empty(), "scalars come last");
            self.outputs.push(tensor.clone());
        }
        fn scalar(&mut self, scalar: &ScalarIr) {
            self.scalars.push(*scalar);
        }
    }

    impl OpVisitor for Seen {
        fn input(&mut self, tensor: &mut TensorIr) {
            OpReader::input(self, tensor);
        }
        fn output(&mut self, tensor: &mut TensorIr) {
            OpReader::output(self, tensor);
        }
        fn scalar(&mut self, scalar: &mut ScalarIr) {
            OpReader::scalar(self, scalar);
        }
    }

    #[test]
    fn both_walks_follow_the_order_of_burn_ir() {
        for mut op in samples() {
            let mut read = Seen::default();
            visit_ref(&op, &mut read);
            let inputs: Vec<_> = op.inputs().cloned().collect();
            let outputs: Vec<_> = op.outputs().cloned().collect();
            assert_eq!(read.inputs, inputs, "{op:?}");
            assert_eq!(read.outputs, outputs, "{op:?}");

            let mut written = Seen::default();
            visit_mut(&mut op, &mut written);
            assert_eq!(read, written, "{op:?}");
        }
    }

    #[test]
    fn a_change_reaches_every_tensor_and_nothing_else() {
        struct Shift;
        impl OpVisitor for Shift {
            fn input(&mut self, tensor: &mut TensorIr) {
                tensor.id = TensorId::new(tensor.id.value() + 1000);
                tensor.status = TensorStatus::ReadWrite;
            }
            fn output(&mut self, tensor: &mut TensorIr) {
                tensor.id = TensorId::new(tensor.id.value() + 2000);
            }
        }
        for op in samples() {
            let mut shifted = op.clone();
            visit_mut(&mut shifted, &mut Shift);
            let ids = |op: &OperationIr| -> (Vec<u64>, Vec<u64>) {
                (
                    op.inputs().map(|t| t.id.value()).collect(),
                    op.outputs().map(|t| t.id.value()).collect(),
                )
            };
            let (inputs, outputs) = ids(&op);
            let (inputs_after, outputs_after) = ids(&shifted);
            assert!(
                inputs
                    .iter()
                    .zip(&inputs_after)
                    .all(|(a, b)| a + 1000 == *b)
            );
            assert!(
                outputs
                    .iter()
                    .zip(&outputs_after)
                    .all(|(a, b)| a + 2000 == *b)
            );
            assert!(
                shifted
                    .inputs()
                    .all(|t| t.status == TensorStatus::ReadWrite)
            );
            assert_eq!(kind_name(&op), kind_name(&shifted));
        }
    }

    #[test]
    fn scalars_are_those_that_change_from_step_to_step() {
        for op in samples() {
            let mut seen = Seen::default();
            visit_ref(&op, &mut seen);
            let name = kind_name(&op);
            let expected = match name {
                "clamp" | "hard_sigmoid" => 2,
                "full" | "mask_fill" | "clamp_min" | "clamp_max" => 1,
                "leaky_relu" | "layer_norm" | "batch_norm" => 1,
                _ if name.ends_with("_scalar") || name.ends_with("_elem") => 1,
                _ => 0,
            };
            assert_eq!(seen.scalars.len(), expected, "{name}");
        }
    }

    #[test]
    fn kinds_are_numbered() {
        for op in samples() {
            assert_eq!(kind_of_number(kind_number(&op)), kind_name(&op));
        }
        assert_eq!(kind_of_number(u16::MAX), "an unknown operation");
    }

    #[test]
    fn kinds_share_a_name_over_dtypes() {
        let of = |family: &str, kind: &str| {
            samples()
                .iter()
                .any(|op| family_name(op) == family && kind_name(op) == kind)
        };
        for family in ["numeric_float", "numeric_int"] {
            assert!(of(family, "add"));
            assert!(of(family, "mul_scalar"));
        }
        for family in ["base_float", "base_int", "base_bool"] {
            assert!(of(family, "reshape"));
        }
        assert!(of("int", "matmul") && of("float", "matmul"));
        assert!(of("module", "linear_x_backward"));
    }
}
