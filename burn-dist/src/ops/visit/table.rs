//! The declarations: one line per description (which fields are inputs, outputs and scalars) and one per variant (its
//! name).

use super::{OpReader, OpVisitor, Tensors, UNKNOWN, Walk};
use burn_ir::*;

/// Declares the fields of descriptions: `Op(inputs) -> (outputs)`, optionally `with scalars`.
macro_rules! fields {
    ($( $op:ident ( $($input:ident),* ) -> ( $($output:ident),* ) $( with $($scalar:ident),+ )? ; )*) => {$(
        impl Fields for $op {
            #[inline]
            #[allow(unused_variables, reason = "an op without inputs does not use its visitor for them")]
            fn fields_mut<V: OpVisitor>(&mut self, visitor: &mut V) {
                $( self.$input.each_mut(|tensor| visitor.input(tensor)); )*
                $( self.$output.each_mut(|tensor| visitor.output(tensor)); )*
                $($( visitor.scalar(&mut self.$scalar); )+)?
            }
            #[inline]
            #[allow(unused_variables, reason = "an op without inputs does not use its reader for them")]
            fn fields_ref<R: OpReader>(&self, reader: &mut R) {
                $( self.$input.each_ref(|tensor| reader.input(tensor)); )*
                $( self.$output.each_ref(|tensor| reader.output(tensor)); )*
                $($( reader.scalar(&self.$scalar); )+)?
            }
        }
    )*};
}

/// Declares the variants of a family with their names.
macro_rules! variants {
    ($( $family:ident, $names:ident { $( $variant:ident $name:literal, )* } )*) => {$(
        impl Walk for $family {
            #[inline]
            fn walk_mut<V: OpVisitor>(&mut self, visitor: &mut V) {
                match self { $( Self::$variant(op) => op.fields_mut(visitor), )* }
            }
            #[inline]
            fn walk_ref<R: OpReader>(&self, reader: &mut R) {
                match self { $( Self::$variant(op) => op.fields_ref(reader), )* }
            }
            #[inline]
            fn kind(&self) -> &'static str {
                match self { $( Self::$variant(_) => $name, )* }
            }
        }
        const $names: &[&str] = &[$($name),*];
    )*};
}

/// Declares the families of [`OperationIr`]: nested ones, whose variants the table above names, and single ops. The
/// parens hold what stands before the op in the variant.
macro_rules! families {
    (
        nested { $( $family:ident ( $($before:tt)* ) $label:literal $names:ident, )* }
        leaves { $( $leaf:ident $leaf_label:literal, )* }
    ) => {
        impl Walk for OperationIr {
            #[inline]
            #[allow(unreachable_patterns, reason = "another crate may turn on families")]
            fn walk_mut<V: OpVisitor>(&mut self, visitor: &mut V) {
                match self {
                    $( Self::$family($($before)* op) => op.walk_mut(visitor), )*
                    $( Self::$leaf(op) => op.fields_mut(visitor), )*
                    _ => {}
                }
            }
            #[inline]
            #[allow(unreachable_patterns, reason = "another crate may turn on families")]
            fn walk_ref<R: OpReader>(&self, reader: &mut R) {
                match self {
                    $( Self::$family($($before)* op) => op.walk_ref(reader), )*
                    $( Self::$leaf(op) => op.fields_ref(reader), )*
                    _ => {}
                }
            }
            #[inline]
            #[allow(unreachable_patterns, reason = "another crate may turn on families")]
            fn kind(&self) -> &'static str {
                match self {
                    $( Self::$family($($before)* op) => op.kind(), )*
                    $( Self::$leaf(_) => $leaf_label, )*
                    _ => UNKNOWN,
                }
            }
        }

        pub(super) const FAMILIES: &[(&str, &[&str])] = &[
            $( ($label, $names), )*
            $( ($leaf_label, &[$leaf_label]), )*
        ];

        // The one place that notices a family that Burn adds without a feature: nothing is left for the wildcard to
        // match, or the lints fail.
        #[inline]
        #[expect(unreachable_patterns, reason = "another crate may turn on families")]
        pub(super) fn family(op: &OperationIr) -> &'static str {
            match op {
                $( OperationIr::$family(..) => $label, )*
                $( OperationIr::$leaf(..) => $leaf_label, )*
                _ => UNKNOWN,
            }
        }
    };
}

/// The tensors and scalars of one description.
trait Fields {
    fn fields_mut<V: OpVisitor>(&mut self, visitor: &mut V);
    fn fields_ref<R: OpReader>(&self, reader: &mut R);
}

/// The tensor of a `Drop` is what the op consumes.
impl Fields for TensorIr {
    #[inline]
    fn fields_mut<V: OpVisitor>(&mut self, visitor: &mut V) {
        visitor.input(self);
    }
    #[inline]
    fn fields_ref<R: OpReader>(&self, reader: &mut R) {
        reader.input(self);
    }
}

fields! {
    CustomOpIr(inputs) -> (outputs);
    InitOperationIr() -> (out);
    CreationOpIr() -> (out);
    RandomOpIr() -> (out);
    FullOpIr() -> (out) with value;

    UnaryOpIr(input) -> (out);
    CastOpIr(input) -> (out);
    BinaryOpIr(lhs, rhs) -> (out);
    ScalarOpIr(lhs) -> (out) with rhs;
    ClampOpIr(tensor) -> (out) with min, max;
    MatmulOpIr(lhs, rhs) -> (out);
    CrossOpIr(lhs, rhs) -> (out);

    ShapeOpIr(input) -> (out);
    SwapDimsOpIr(input) -> (out);
    PermuteOpIr(input) -> (out);
    FlipOpIr(input) -> (out);
    UnfoldOpIr(input) -> (out);
    SliceOpIr(tensor) -> (out);
    SliceAssignOpIr(tensor, value) -> (out);
    RepeatDimOpIr(tensor) -> (out);
    CatOpIr(tensors) -> (out);

    GatherOpIr(tensor, indices) -> (out);
    ScatterOpIr(tensor, indices, value) -> (out);
    GatherNdOpIr(data, indices) -> (out);
    ScatterNdOpIr(data, indices, values) -> (out);
    SelectOpIr(tensor, indices) -> (out);
    SelectAssignOpIr(tensor, indices, value) -> (out);
    MaskWhereOpIr(tensor, mask, value) -> (out);
    MaskFillOpIr(tensor, mask) -> (out) with value;

    ReduceOpIr(input) -> (out);
    ReduceDimOpIr(input) -> (out);
    ReduceDimWithIndicesOpIr(tensor) -> (out, out_indices);
    DimOpIr(input) -> (out);

    QuantizeOpIr(tensor, qparams) -> (out);
    DequantizeOpIr(input) -> (out);
    GridSample2dOpIr(tensor, grid) -> (out);

    EmbeddingOpIr(weights, indices) -> (out);
    EmbeddingBackwardOpIr(weights, out_grad, indices) -> (out);
    LinearOpIr(x, weight, bias) -> (out);
    LinearXBackwardOpIr(weight, output_grad) -> (out);
    LinearWeightBackwardOpIr(x, output_grad) -> (out);
    LinearBiasBackwardOpIr(output_grad) -> (out);

    Conv1dOpIr(x, weight, bias) -> (out);
    Conv1dXBackwardOpIr(x, weight, output_grad) -> (out);
    Conv1dWeightBackwardOpIr(x, weight, output_grad) -> (out);
    Conv1dBiasBackwardOpIr(x, bias, output_grad) -> (out);
    Conv2dOpIr(x, weight, bias) -> (out);
    Conv2dXBackwardOpIr(x, weight, output_grad) -> (out);
    Conv2dWeightBackwardOpIr(x, weight, output_grad) -> (out);
    Conv2dBiasBackwardOpIr(x, bias, output_grad) -> (out);
    Conv3dOpIr(x, weight, bias) -> (out);
    Conv3dXBackwardOpIr(x, weight, output_grad) -> (out);
    Conv3dWeightBackwardOpIr(x, weight, output_grad) -> (out);
    Conv3dBiasBackwardOpIr(x, bias, output_grad) -> (out);
    DeformConv2dOpIr(x, offset, weight, mask, bias) -> (out);
    DeformConv2dBackwardOpIr(x, offset, weight, out_grad, mask, bias)
        -> (input_grad, offset_grad, weight_grad, mask_grad, bias_grad);
    ConvTranspose1dOpIr(x, weight, bias) -> (out);
    ConvTranspose2dOpIr(x, weight, bias) -> (out);
    ConvTranspose3dOpIr(x, weight, bias) -> (out);

    AvgPool1dOpIr(x) -> (out);
    AvgPool2dOpIr(x) -> (out);
    AvgPool1dBackwardOpIr(x, grad) -> (out);
    AvgPool2dBackwardOpIr(x, grad) -> (out);
    AdaptiveAvgPool1dOpIr(x) -> (out);
    AdaptiveAvgPool2dOpIr(x) -> (out);
    AdaptiveAvgPool1dBackwardOpIr(x, grad) -> (out);
    AdaptiveAvgPool2dBackwardOpIr(x, grad) -> (out);
    MaxPool1dOpIr(x) -> (out);
    MaxPool1dWithIndicesOpIr(x) -> (out, out_indices);
    MaxPool1dWithIndicesBackwardOpIr(x, indices, grad) -> (out);
    MaxPool2dOpIr(x) -> (out);
    MaxPool2dWithIndicesOpIr(x) -> (out, out_indices);
    MaxPool2dWithIndicesBackwardOpIr(x, indices, grad) -> (out);
    InterpolateOpIr(x) -> (out);
    InterpolateBackwardOpIr(x, grad) -> (out);

    RfftOpIr(signal) -> (out_re, out_im);
    IRfftOpIr(input_re, input_im) -> (out_signal);
    AttentionOpIr(query, key, value, mask, attn_bias) -> (out);
    CtcLossOpIr(log_probs, targets, input_lengths, target_lengths) -> (out);
    CtcLossBackwardOpIr(log_probs, targets, input_lengths, target_lengths, grad_loss) -> (out);
}

variants! {
    BaseOperationIr, BASE {
        Reshape "reshape", SwapDims "swap_dims", Permute "permute", Flip "flip", Expand "expand", Unfold "unfold",
        Slice "slice", SliceAssign "slice_assign", Select "select", SelectAssign "select_assign",
        MaskWhere "mask_where", MaskFill "mask_fill", Gather "gather", Scatter "scatter",
        ScatterNd "scatter_nd", GatherNd "gather_nd", Equal "equal", EqualElem "equal_elem",
        RepeatDim "repeat_dim", Cat "cat", Cast "cast", Empty "empty", Ones "ones", Zeros "zeros",
    }
    NumericOperationIr, NUMERIC {
        Add "add", AddScalar "add_scalar", Sub "sub", SubScalar "sub_scalar", Div "div", DivScalar "div_scalar",
        Rem "rem", RemScalar "rem_scalar", Mul "mul", MulScalar "mul_scalar", Abs "abs", Full "full",
        MeanDim "mean_dim", Mean "mean", Sum "sum", SumDim "sum_dim", Prod "prod", ProdDim "prod_dim",
        Greater "greater", GreaterElem "greater_elem",
        GreaterEqual "greater_equal", GreaterEqualElem "greater_equal_elem",
        Lower "lower", LowerElem "lower_elem", LowerEqual "lower_equal", LowerEqualElem "lower_equal_elem",
        ArgMax "argmax", ArgTopK "argtopk", TopK "topk", ArgMin "argmin", Max "max",
        MaxDimWithIndices "max_dim_with_indices", MinDimWithIndices "min_dim_with_indices",
        Min "min", MaxDim "max_dim", MinDim "min_dim", MaxAbs "max_abs", MaxAbsDim "max_abs_dim",
        Clamp "clamp", IntRandom "random", Powi "powi", PowiScalar "powi_scalar",
        CumSum "cumsum", CumProd "cumprod", CumMin "cummin", CumMax "cummax",
    }
    BoolOperationIr, BOOL {
        IntoFloat "into_float", IntoInt "into_int", Not "not", And "and", Or "or",
    }
    IntOperationIr, INT {
        IntoFloat "into_float", BitwiseAnd "bitwise_and", BitwiseAndScalar "bitwise_and_scalar",
        BitwiseOr "bitwise_or", BitwiseOrScalar "bitwise_or_scalar",
        BitwiseXor "bitwise_xor", BitwiseXorScalar "bitwise_xor_scalar", BitwiseNot "bitwise_not",
        BitwiseLeftShift "bitwise_left_shift", BitwiseLeftShiftScalar "bitwise_left_shift_scalar",
        BitwiseRightShift "bitwise_right_shift", BitwiseRightShiftScalar "bitwise_right_shift_scalar",
        Matmul "matmul",
    }
    FloatOperationIr, FLOAT {
        Exp "exp", Log "log", Log1p "log1p", Erf "erf", PowfScalar "powf_scalar", Sqrt "sqrt",
        Cos "cos", Cosh "cosh", Sin "sin", Sinh "sinh", Tan "tan", Tanh "tanh",
        ArcCos "acos", ArcCosh "acosh", ArcSin "asin", ArcSinh "asinh", ArcTan "atan", ArcTanh "atanh",
        ArcTan2 "atan2", Round "round", Floor "floor", Ceil "ceil", Trunc "trunc", IntoInt "into_int",
        Matmul "matmul", Cross "cross", Random "random", Recip "recip", IsNan "is_nan", IsInf "is_inf",
        Quantize "quantize", Dequantize "dequantize", GridSample2d "grid_sample_2d", Powf "powf",
    }
    ModuleOperationIr, MODULE {
        Embedding "embedding", EmbeddingBackward "embedding_backward",
        Linear "linear", LinearXBackward "linear_x_backward",
        LinearWeightBackward "linear_weight_backward", LinearBiasBackward "linear_bias_backward",
        Conv1d "conv1d", Conv1dXBackward "conv1d_x_backward",
        Conv1dWeightBackward "conv1d_weight_backward", Conv1dBiasBackward "conv1d_bias_backward",
        Conv2d "conv2d", Conv2dXBackward "conv2d_x_backward",
        Conv2dWeightBackward "conv2d_weight_backward", Conv2dBiasBackward "conv2d_bias_backward",
        Conv3d "conv3d", Conv3dXBackward "conv3d_x_backward",
        Conv3dWeightBackward "conv3d_weight_backward", Conv3dBiasBackward "conv3d_bias_backward",
        DeformableConv2d "deform_conv2d", DeformableConv2dBackward "deform_conv2d_backward",
        ConvTranspose1d "conv_transpose1d", ConvTranspose2d "conv_transpose2d", ConvTranspose3d "conv_transpose3d",
        AvgPool1d "avg_pool1d", AvgPool2d "avg_pool2d",
        AvgPool1dBackward "avg_pool1d_backward", AvgPool2dBackward "avg_pool2d_backward",
        AdaptiveAvgPool1d "adaptive_avg_pool1d", AdaptiveAvgPool2d "adaptive_avg_pool2d",
        AdaptiveAvgPool1dBackward "adaptive_avg_pool1d_backward",
        AdaptiveAvgPool2dBackward "adaptive_avg_pool2d_backward",
        MaxPool1d "max_pool1d", MaxPool1dWithIndices "max_pool1d_with_indices",
        MaxPool1dWithIndicesBackward "max_pool1d_with_indices_backward",
        MaxPool2d "max_pool2d", MaxPool2dWithIndices "max_pool2d_with_indices",
        MaxPool2dWithIndicesBackward "max_pool2d_with_indices_backward",
        Interpolate "interpolate", InterpolateBackward "interpolate_backward",
        Rfft "rfft", IRfft "irfft", Attention "attention", CtcLoss "ctc_loss", CtcLossBackward "ctc_loss_backward",
    }
}

families! {
    nested {
        BaseFloat() "base_float" BASE,
        BaseInt() "base_int" BASE,
        BaseBool() "base_bool" BASE,
        NumericFloat(_,) "numeric_float" NUMERIC,
        NumericInt(_,) "numeric_int" NUMERIC,
        Bool() "bool" BOOL,
        Int() "int" INT,
        Float(_,) "float" FLOAT,
        Module() "module" MODULE,
    }
    leaves {
        Init "init",
        Custom "custom",
        Drop "drop",
    }
}
