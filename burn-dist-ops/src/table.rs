//! The table of burn-ir's operations: one line per description (which fields are inputs, outputs and scalars) and one
//! per variant (its name and its family). A variant that Burn adds does not compile until it stands here. What only one
//! line of Burn has says so.

use burn_ir::*;

use super::family::*;
use super::kinds::Kind;
use super::visit::{OpReader, OpVisitor, Tensors, UNKNOWN, Walk};

/// Declares the fields of descriptions: `Op: [inputs -> outputs]`, scalars after a semicolon. Those with equal names
/// share a line.
macro_rules! fields {
    ($( $($op:ident),+ : $fields:tt; )*) => { $($( fields_of!($op $fields); )+)* };
}

macro_rules! fields_of {
    ($op:ident [ $($input:ident),* -> $($output:ident),* $(; $($scalar:ident),+)? ]) => {
        impl Fields for $op {
            #[inline]
            #[allow(unused_variables, reason = "an op without inputs does not use its visitor for them")]
            fn fields_mut<V: OpVisitor>(&mut self, visitor: &mut V) {
                $( self.$input.each_mut::<false>(visitor); )*
                $( self.$output.each_mut::<true>(visitor); )*
                $($( visitor.scalar(&mut self.$scalar); )+)?
            }
            #[inline]
            #[allow(unused_variables, reason = "an op without inputs does not use its reader for them")]
            fn fields_ref<'a, R: OpReader<'a>>(&'a self, reader: &mut R) {
                $( self.$input.each_ref::<false>(reader); )*
                $( self.$output.each_ref::<true>(reader); )*
                $($( reader.scalar(&self.$scalar); )+)?
            }
        }
    };
}

/// Declares the variants of an enum with their names and families.
macro_rules! variants {
    ($( $family:ident, $names:ident { $( $(#[$line:meta])? $variant:ident $name:literal $of:ident, )* } )*) => {$(
        impl Member for $family {
            #[inline]
            fn family(&self) -> Family<'_> {
                match self { $( $(#[$line])? Self::$variant(op) => Family::$of($of::$variant(op)), )* }
            }
        }
        impl Walk for $family {
            #[inline]
            fn walk_mut<V: OpVisitor>(&mut self, visitor: &mut V) {
                match self { $( $(#[$line])? Self::$variant(op) => op.fields_mut(visitor), )* }
            }
            #[inline]
            fn walk_ref<'a, R: OpReader<'a>>(&'a self, reader: &mut R) {
                match self { $( $(#[$line])? Self::$variant(op) => op.fields_ref(reader), )* }
            }
            #[inline]
            fn kind(&self) -> &'static str {
                match self { $( $(#[$line])? Self::$variant(_) => $name, )* }
            }
        }
        const $names: &[&str] = &[$( $(#[$line])? $name, )*];
    )*};
}

/// Declares the families of [`OperationIr`]: nested ones, whose variants the table above names, single ops, and those
/// that are refused. The parens hold what stands before the op in the variant.
macro_rules! families {
    (
        nested { $( $(#[$line:meta])? $family:ident ( $($before:tt)* ) $label:literal $names:ident $kind:ident, )* }
        leaves { $( $leaf:ident $leaf_label:literal $of:ident, )* }
        refused { $( $(#[$refused_line:meta])? $refused:ident, )* }
    ) => {
        impl Walk for OperationIr {
            #[inline]
            #[allow(unreachable_patterns, reason = "another crate may turn on families")]
            fn walk_mut<V: OpVisitor>(&mut self, visitor: &mut V) {
                match self {
                    $( $(#[$line])? Self::$family($($before)* op) => op.walk_mut(visitor), )*
                    $( Self::$leaf(op) => op.fields_mut(visitor), )*
                    _ => {}
                }
            }
            #[inline]
            #[allow(unreachable_patterns, reason = "another crate may turn on families")]
            fn walk_ref<'a, R: OpReader<'a>>(&'a self, reader: &mut R) {
                match self {
                    $( $(#[$line])? Self::$family($($before)* op) => op.walk_ref(reader), )*
                    $( Self::$leaf(op) => op.fields_ref(reader), )*
                    _ => {}
                }
            }
            #[inline]
            #[allow(unreachable_patterns, reason = "another crate may turn on families")]
            fn kind(&self) -> &'static str {
                match self {
                    $( $(#[$line])? Self::$family($($before)* op) => op.kind(), )*
                    $( Self::$leaf(_) => $leaf_label, )*
                    _ => UNKNOWN,
                }
            }
        }

        pub(super) const FAMILIES: &[(&str, &[&str])] = &[
            $( $(#[$line])? ($label, $names), )*
            $( ($leaf_label, &[$leaf_label]), )*
        ];

        /// Returns the family of an operation, and the kind of its tensors.
        #[inline]
        #[allow(unreachable_patterns, reason = "another crate may turn on families")]
        pub(super) fn family_of(op: &OperationIr) -> (Kind, Family<'_>) {
            match op {
                $( $(#[$line])? OperationIr::$family($($before)* op) => (Kind::$kind, op.family()), )*
                $( OperationIr::$leaf(op) => (Kind::Float, Family::$of($of::$leaf(op))), )*
                op => (Kind::Float, Family::Unknown(op)),
            }
        }

        // The one place that notices a family that Burn adds without a feature: nothing is left for the wildcard to
        // match, or the lints fail.
        #[inline]
        #[expect(unreachable_patterns, reason = "another crate may turn on families")]
        pub(super) fn label(op: &OperationIr) -> &'static str {
            match op {
                $( $(#[$line])? OperationIr::$family(..) => $label, )*
                $( OperationIr::$leaf(..) => $leaf_label, )*
                $( $(#[$refused_line])? OperationIr::$refused(..) => UNKNOWN, )*
                _ => UNKNOWN,
            }
        }
    };
}

/// A variant of one of burn-ir's enums.
trait Member {
    fn family(&self) -> Family<'_>;
}

/// The tensors and scalars of one description.
trait Fields {
    fn fields_mut<V: OpVisitor>(&mut self, visitor: &mut V);
    fn fields_ref<'a, R: OpReader<'a>>(&'a self, reader: &mut R);
}

/// The tensor of a `Drop` is what the op consumes.
impl Fields for TensorIr {
    #[inline]
    fn fields_mut<V: OpVisitor>(&mut self, visitor: &mut V) {
        visitor.input(self);
    }
    #[inline]
    fn fields_ref<'a, R: OpReader<'a>>(&'a self, reader: &mut R) {
        reader.input(self);
    }
}

fields! {
    CustomOpIr: [inputs -> outputs];
    InitOperationIr, CreationOpIr, RandomOpIr: [-> out];
    FullOpIr: [-> out; value];
    UnaryOpIr, CastOpIr, ShapeOpIr, SwapDimsOpIr, PermuteOpIr, FlipOpIr, UnfoldOpIr, ReduceOpIr, ReduceDimOpIr,
        DimOpIr, DequantizeOpIr: [input -> out];
    BinaryOpIr, MatmulOpIr, CrossOpIr: [lhs, rhs -> out];
    ScalarOpIr: [lhs -> out; rhs];
    ClampOpIr: [tensor -> out; min, max];
    SliceOpIr, RepeatDimOpIr: [tensor -> out];
    SliceAssignOpIr: [tensor, value -> out];
    CatOpIr: [tensors -> out];
    GatherOpIr, SelectOpIr: [tensor, indices -> out];
    ScatterOpIr, SelectAssignOpIr: [tensor, indices, value -> out];
    GatherNdOpIr: [data, indices -> out];
    ScatterNdOpIr: [data, indices, values -> out];
    MaskWhereOpIr: [tensor, mask, value -> out];
    MaskFillOpIr: [tensor, mask -> out; value];
    ReduceDimWithIndicesOpIr: [tensor -> out, out_indices];
    QuantizeOpIr: [tensor, qparams -> out];
    GridSample2dOpIr: [tensor, grid -> out];
    EmbeddingOpIr: [weights, indices -> out];
    EmbeddingBackwardOpIr: [weights, out_grad, indices -> out];
    LinearOpIr, Conv1dOpIr, Conv2dOpIr, Conv3dOpIr, ConvTranspose1dOpIr, ConvTranspose2dOpIr, ConvTranspose3dOpIr: [x,
        weight, bias -> out];
    LinearXBackwardOpIr: [weight, output_grad -> out];
    LinearWeightBackwardOpIr: [x, output_grad -> out];
    LinearBiasBackwardOpIr: [output_grad -> out];
    Conv1dXBackwardOpIr, Conv1dWeightBackwardOpIr, Conv2dXBackwardOpIr, Conv2dWeightBackwardOpIr, Conv3dXBackwardOpIr,
        Conv3dWeightBackwardOpIr: [x, weight, output_grad -> out];
    Conv1dBiasBackwardOpIr, Conv2dBiasBackwardOpIr, Conv3dBiasBackwardOpIr: [x, bias, output_grad -> out];
    DeformConv2dOpIr: [x, offset, weight, mask, bias -> out];
    DeformConv2dBackwardOpIr: [x, offset, weight, out_grad, mask, bias -> input_grad, offset_grad, weight_grad,
        mask_grad, bias_grad];
    AvgPool1dOpIr, AvgPool2dOpIr, AdaptiveAvgPool1dOpIr, AdaptiveAvgPool2dOpIr, MaxPool1dOpIr, MaxPool2dOpIr,
        InterpolateOpIr: [x -> out];
    AvgPool1dBackwardOpIr, AvgPool2dBackwardOpIr, AdaptiveAvgPool1dBackwardOpIr, AdaptiveAvgPool2dBackwardOpIr,
        InterpolateBackwardOpIr: [x, grad -> out];
    MaxPool1dWithIndicesOpIr, MaxPool2dWithIndicesOpIr: [x -> out, out_indices];
    MaxPool1dWithIndicesBackwardOpIr, MaxPool2dWithIndicesBackwardOpIr: [x, indices, grad -> out];
    AttentionOpIr: [query, key, value, mask, attn_bias -> out];
    CtcLossOpIr: [log_probs, targets, input_lengths, target_lengths -> out];
    CtcLossBackwardOpIr: [log_probs, targets, input_lengths, target_lengths, grad_loss -> out];
}

#[cfg(burn_021)]
fields! {
    RfftOpIr: [signal -> out_re, out_im];
    IRfftOpIr: [input_re, input_im -> out_signal];
}

#[cfg(not(burn_021))]
fields! {
    ReduceDimsOpIr, PadOpIr: [input -> out];
    SortOpIr: [input -> out];
    SortWithIndicesOpIr: [input -> out, out_indices];
    TopKWithIndicesOpIr: [tensor -> out, out_indices];
    HardSigmoidOpIr: [tensor -> out; alpha, beta];
    LayerNormOpIr: [input, gamma, beta -> out; epsilon];
    BatchNormOpIr: [x, gamma, beta, mean, variance -> out; epsilon];
    Unfold4dOpIr, AdaptiveAvgPool3dOpIr: [x -> out];
    AdaptiveAvgPool3dBackwardOpIr: [x, grad -> out];
    ConvTranspose1dWeightBackwardOpIr, ConvTranspose2dWeightBackwardOpIr, ConvTranspose3dWeightBackwardOpIr: [x, weight,
        output_grad -> out];
    ConvTranspose1dBiasBackwardOpIr, ConvTranspose2dBiasBackwardOpIr, ConvTranspose3dBiasBackwardOpIr: [x, bias,
        output_grad -> out];
}

variants! {
    BaseOperationIr, BASE {
        Reshape "reshape" View,
        SwapDims "swap_dims" View,
        Permute "permute" View,
        Flip "flip" View,
        Expand "expand" View,
        Unfold "unfold" View,
        Slice "slice" View,
        SliceAssign "slice_assign" Join,
        Select "select" Index,
        SelectAssign "select_assign" Index,
        MaskWhere "mask_where" Mask,
        MaskFill "mask_fill" Mask,
        Gather "gather" Index,
        Scatter "scatter" Index,
        ScatterNd "scatter_nd" Index,
        GatherNd "gather_nd" Index,
        Equal "equal" Compare,
        EqualElem "equal_elem" Compare,
        RepeatDim "repeat_dim" View,
        Cat "cat" Join,
        Cast "cast" Convert,
        Empty "empty" Create,
        Ones "ones" Create,
        Zeros "zeros" Create,
        #[cfg(not(burn_021))]
        NotEqual "not_equal" Truth,
        #[cfg(not(burn_021))]
        NotEqualElem "not_equal_elem" Truth,
        #[cfg(not(burn_021))]
        All "all" Truth,
        #[cfg(not(burn_021))]
        Any "any" Truth,
        #[cfg(not(burn_021))]
        AllDim "all_dim" Truth,
        #[cfg(not(burn_021))]
        AnyDim "any_dim" Truth,
    }
    NumericOperationIr, NUMERIC {
        Add "add" Arithmetic,
        AddScalar "add_scalar" Arithmetic,
        Sub "sub" Arithmetic,
        SubScalar "sub_scalar" Arithmetic,
        Div "div" Arithmetic,
        DivScalar "div_scalar" Arithmetic,
        Rem "rem" Arithmetic,
        RemScalar "rem_scalar" Arithmetic,
        Mul "mul" Arithmetic,
        MulScalar "mul_scalar" Arithmetic,
        Abs "abs" Arithmetic,
        Full "full" Create,
        MeanDim "mean_dim" Reduce,
        Mean "mean" Reduce,
        Sum "sum" Reduce,
        SumDim "sum_dim" Reduce,
        Prod "prod" Reduce,
        ProdDim "prod_dim" Reduce,
        Greater "greater" Compare,
        GreaterElem "greater_elem" Compare,
        GreaterEqual "greater_equal" Compare,
        GreaterEqualElem "greater_equal_elem" Compare,
        Lower "lower" Compare,
        LowerElem "lower_elem" Compare,
        LowerEqual "lower_equal" Compare,
        LowerEqualElem "lower_equal_elem" Compare,
        ArgMax "argmax" Reduce,
        ArgTopK "argtopk" Reduce,
        TopK "topk" Reduce,
        ArgMin "argmin" Reduce,
        Max "max" Reduce,
        MaxDimWithIndices "max_dim_with_indices" Reduce,
        MinDimWithIndices "min_dim_with_indices" Reduce,
        Min "min" Reduce,
        MaxDim "max_dim" Reduce,
        MinDim "min_dim" Reduce,
        MaxAbs "max_abs" Reduce,
        MaxAbsDim "max_abs_dim" Reduce,
        Clamp "clamp" Arithmetic,
        IntRandom "random" Create,
        Powi "powi" Arithmetic,
        PowiScalar "powi_scalar" Arithmetic,
        CumSum "cumsum" Scan,
        CumProd "cumprod" Scan,
        CumMin "cummin" Scan,
        CumMax "cummax" Scan,
        #[cfg(not(burn_021))]
        SumDims "sum_dims" Sums,
        #[cfg(not(burn_021))]
        TopKWithIndices "topk_with_indices" Sort,
        #[cfg(not(burn_021))]
        Neg "neg" Signed,
        #[cfg(not(burn_021))]
        Sign "sign" Signed,
        #[cfg(not(burn_021))]
        ClampMin "clamp_min" Signed,
        #[cfg(not(burn_021))]
        ClampMax "clamp_max" Signed,
        #[cfg(not(burn_021))]
        Sort "sort" Sort,
        #[cfg(not(burn_021))]
        SortWithIndices "sort_with_indices" Sort,
        #[cfg(not(burn_021))]
        ArgSort "argsort" Sort,
        #[cfg(not(burn_021))]
        Pad "pad" Pad,
    }
    BoolOperationIr, BOOL {
        IntoFloat "into_float" Convert,
        IntoInt "into_int" Convert,
        Not "not" Logic,
        And "and" Logic,
        Or "or" Logic,
        #[cfg(not(burn_021))]
        Xor "xor" Truth,
    }
    IntOperationIr, INT {
        IntoFloat "into_float" Convert,
        BitwiseAnd "bitwise_and" Bits,
        BitwiseAndScalar "bitwise_and_scalar" Bits,
        BitwiseOr "bitwise_or" Bits,
        BitwiseOrScalar "bitwise_or_scalar" Bits,
        BitwiseXor "bitwise_xor" Bits,
        BitwiseXorScalar "bitwise_xor_scalar" Bits,
        BitwiseNot "bitwise_not" Bits,
        BitwiseLeftShift "bitwise_left_shift" Bits,
        BitwiseLeftShiftScalar "bitwise_left_shift_scalar" Bits,
        BitwiseRightShift "bitwise_right_shift" Bits,
        BitwiseRightShiftScalar "bitwise_right_shift_scalar" Bits,
        Matmul "matmul" Matmul,
    }
    FloatOperationIr, FLOAT {
        Exp "exp" Function,
        Log "log" Function,
        Log1p "log1p" Function,
        Erf "erf" Function,
        PowfScalar "powf_scalar" Function,
        Sqrt "sqrt" Function,
        Cos "cos" Function,
        Cosh "cosh" Function,
        Sin "sin" Function,
        Sinh "sinh" Function,
        Tan "tan" Function,
        Tanh "tanh" Function,
        ArcCos "acos" Function,
        ArcCosh "acosh" Function,
        ArcSin "asin" Function,
        ArcSinh "asinh" Function,
        ArcTan "atan" Function,
        ArcTanh "atanh" Function,
        ArcTan2 "atan2" Function,
        Round "round" Function,
        Floor "floor" Function,
        Ceil "ceil" Function,
        Trunc "trunc" Function,
        IntoInt "into_int" Convert,
        Matmul "matmul" Matmul,
        Cross "cross" Matmul,
        Random "random" Create,
        Recip "recip" Function,
        IsNan "is_nan" Function,
        IsInf "is_inf" Function,
        Quantize "quantize" Quantized,
        Dequantize "dequantize" Quantized,
        GridSample2d "grid_sample_2d" Pool,
        Powf "powf" Function,
        #[cfg(not(burn_021))]
        Hypot "hypot" Signed,
    }
    ModuleOperationIr, MODULE {
        Embedding "embedding" Embedding,
        EmbeddingBackward "embedding_backward" Embedding,
        Linear "linear" Linear,
        LinearXBackward "linear_x_backward" Linear,
        LinearWeightBackward "linear_weight_backward" Linear,
        LinearBiasBackward "linear_bias_backward" Linear,
        Conv1d "conv1d" Conv,
        Conv1dXBackward "conv1d_x_backward" Conv,
        Conv1dWeightBackward "conv1d_weight_backward" Conv,
        Conv1dBiasBackward "conv1d_bias_backward" Conv,
        Conv2d "conv2d" Conv,
        Conv2dXBackward "conv2d_x_backward" Conv,
        Conv2dWeightBackward "conv2d_weight_backward" Conv,
        Conv2dBiasBackward "conv2d_bias_backward" Conv,
        Conv3d "conv3d" Conv,
        Conv3dXBackward "conv3d_x_backward" Conv,
        Conv3dWeightBackward "conv3d_weight_backward" Conv,
        Conv3dBiasBackward "conv3d_bias_backward" Conv,
        DeformableConv2d "deform_conv2d" Conv,
        DeformableConv2dBackward "deform_conv2d_backward" Conv,
        ConvTranspose1d "conv_transpose1d" Conv,
        ConvTranspose2d "conv_transpose2d" Conv,
        ConvTranspose3d "conv_transpose3d" Conv,
        AvgPool1d "avg_pool1d" Pool,
        AvgPool2d "avg_pool2d" Pool,
        AvgPool1dBackward "avg_pool1d_backward" Pool,
        AvgPool2dBackward "avg_pool2d_backward" Pool,
        AdaptiveAvgPool1d "adaptive_avg_pool1d" Pool,
        AdaptiveAvgPool2d "adaptive_avg_pool2d" Pool,
        AdaptiveAvgPool1dBackward "adaptive_avg_pool1d_backward" Pool,
        AdaptiveAvgPool2dBackward "adaptive_avg_pool2d_backward" Pool,
        MaxPool1d "max_pool1d" Pool,
        MaxPool1dWithIndices "max_pool1d_with_indices" Pool,
        MaxPool1dWithIndicesBackward "max_pool1d_with_indices_backward" Pool,
        MaxPool2d "max_pool2d" Pool,
        MaxPool2dWithIndices "max_pool2d_with_indices" Pool,
        MaxPool2dWithIndicesBackward "max_pool2d_with_indices_backward" Pool,
        Interpolate "interpolate" Pool,
        InterpolateBackward "interpolate_backward" Pool,
        #[cfg(burn_021)]
        Rfft "rfft" Spectral,
        #[cfg(burn_021)]
        IRfft "irfft" Spectral,
        Attention "attention" Attention,
        CtcLoss "ctc_loss" Ctc,
        CtcLossBackward "ctc_loss_backward" Ctc,
        #[cfg(not(burn_021))]
        BatchNorm "batch_norm" Normal,
        #[cfg(not(burn_021))]
        LayerNorm "layer_norm" Normal,
        #[cfg(not(burn_021))]
        AdaptiveAvgPool3d "adaptive_avg_pool3d" Space,
        #[cfg(not(burn_021))]
        AdaptiveAvgPool3dBackward "adaptive_avg_pool3d_backward" Space,
        #[cfg(not(burn_021))]
        Unfold4d "unfold4d" Space,
        #[cfg(not(burn_021))]
        ConvTranspose1dWeightBackward "conv_transpose1d_weight_backward" Transposed,
        #[cfg(not(burn_021))]
        ConvTranspose1dBiasBackward "conv_transpose1d_bias_backward" Transposed,
        #[cfg(not(burn_021))]
        ConvTranspose2dWeightBackward "conv_transpose2d_weight_backward" Transposed,
        #[cfg(not(burn_021))]
        ConvTranspose2dBiasBackward "conv_transpose2d_bias_backward" Transposed,
        #[cfg(not(burn_021))]
        ConvTranspose3dWeightBackward "conv_transpose3d_weight_backward" Transposed,
        #[cfg(not(burn_021))]
        ConvTranspose3dBiasBackward "conv_transpose3d_bias_backward" Transposed,
    }
}

#[cfg(not(burn_021))]
variants! {
    ActivationOperationIr, ACTIVATION {
        Relu "relu" Activated,
        ReluBackward "relu_backward" Activated,
        LeakyRelu "leaky_relu" Activated,
        PRelu "prelu" Activated,
        Gelu "gelu" Activated,
        GeluBackward "gelu_backward" Activated,
        Sigmoid "sigmoid" Activated,
        SigmoidBackward "sigmoid_backward" Activated,
        HardSigmoid "hard_sigmoid" Activated,
        LogSigmoid "log_sigmoid" Activated,
        LogSigmoidBackward "log_sigmoid_backward" Activated,
        Softmax "softmax" Normal,
        LogSoftmax "log_softmax" Normal,
        Softmin "softmin" Normal,
    }
}

families! {
    nested {
        BaseFloat() "base_float" BASE Float,
        BaseInt() "base_int" BASE Int,
        BaseBool() "base_bool" BASE Bool,
        NumericFloat(_,) "numeric_float" NUMERIC Float,
        NumericInt(_,) "numeric_int" NUMERIC Int,
        Bool() "bool" BOOL Bool,
        Int() "int" INT Int,
        Float(_,) "float" FLOAT Float,
        Module() "module" MODULE Float,
        #[cfg(not(burn_021))]
        Activation() "activation" ACTIVATION Float,
    }
    leaves {
        Init "init" Create,
        Custom "custom" Activated,
        Drop "drop" Create,
    }
    refused {
        // Burn's own reductions over several devices: each mesh reduces over its own ranks.
        #[cfg(not(burn_021))]
        Distributed,
    }
}
