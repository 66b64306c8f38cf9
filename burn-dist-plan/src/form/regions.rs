//! Regions and what they compute.

use super::{Failed, Form, Reader, Writer, form, lines};
use crate::ir::region::{
    Binary, Extent, Fold, Formula, Instruction, Keep, Number, Region, ScalarOf, Typed, Unary,
};
use crate::ir::{NewTensor, RegionInput, RegionTask};

form!(struct RegionTask {
    "" outputs, " of " inputs, " scalars " scalars or Vec::new(), " draws " draws or Vec::new(),
    " operations " operations, " indexed " indexed or None, " in " path, " room " room or 0,
    " " region,
});
form!(struct NewTensor { "s" id, " " dtype, " " shape });
form!(struct RegionInput { "s" slot, " " dtype, " " shape, " take" take or false });
form!(struct Region {
    "over " space, " spans " spans as spans, " keeps " keeps, " scalars " scalars or 0, " " formula,
});
form!(enum Keep { "each" => Each(" " extent), "over_rows" => OverRows(" " fold), "over_all" => OverAll(" " fold, " of " extent) });
form!(enum Extent { "elements" => Elements, "rows" => Rows });
form!(enum Fold { "sum" => Sum, "prod" => Prod, "max" => Max, "min" => Min });
form!(enum ScalarOf { "number" => Number(" " number), "slot" => Slot(" " slot) });
form!(enum Number { "float" => Float(" " value), "int" => Int(" " value), "uint" => UInt(" " value) });
form!(struct Formula { "operands " operands, " results " results, " " instructions as lines });
form!(struct Typed { "" dtype, " " instruction });
form!(enum Instruction {
    "constant" => Constant(" " number), "scalar" => Scalar(" " index), "draw" => Draw(" " index),
    "cast" => Cast(" " of),
    "unary" => Unary(" " unary, " " of), "binary" => Binary(" " binary, " " left, " " right),
    "powi" => Powi(" " base, " " exponent),
    "select" => Select { " " mask, " " on_true, " " on_false },
    "fold" => Fold(" " fold, " " of), "add_at" => AddAt { " " to, " " index, " " value },
});
form!(enum Unary {
    "neg" => Neg, "abs" => Abs, "sign" => Sign, "exp" => Exp, "log1p" => Log1p, "log" => Log, "sqrt" => Sqrt,
    "recip" => Recip, "sin" => Sin, "cos" => Cos, "tan" => Tan, "sinh" => Sinh, "cosh" => Cosh, "tanh" => Tanh,
    "arc_sin" => ArcSin, "arc_cos" => ArcCos, "arc_tan" => ArcTan, "arc_sinh" => ArcSinh, "arc_cosh" => ArcCosh,
    "arc_tanh" => ArcTanh, "erf" => Erf, "sigmoid" => Sigmoid, "round" => Round, "floor" => Floor, "ceil" => Ceil,
    "trunc" => Trunc, "is_nan" => IsNan, "is_inf" => IsInf, "not" => Not,
});
form!(enum Binary {
    "add" => Add, "sub" => Sub, "mul" => Mul, "div" => Div, "rem" => Rem, "pow" => Pow, "arc_tan2" => ArcTan2,
    "min" => Min, "max" => Max, "equal" => Equal, "not_equal" => NotEqual, "less_equal" => LessEqual,
    "less" => Less, "greater_equal" => GreaterEqual, "greater" => Greater, "and" => And, "or" => Or, "xor" => Xor,
    "shift_left" => ShiftLeft, "shift_right" => ShiftRight,
});

/// For each operand the dims of the space that it spans: `x` of those, `-` of others.
mod spans {
    use super::*;

    pub(super) fn write(spans: &[Vec<bool>], to: &mut Writer<'_>) {
        let text = |spans: &Vec<bool>| {
            let dims = spans.iter().map(|spans| if *spans { 'x' } else { '-' });
            dims.collect::<String>()
        };
        spans.iter().map(text).collect::<Vec<String>>().write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Vec<Vec<bool>>, Failed> {
        let texts: Vec<String> = Form::read(from)?;
        let spans = texts
            .iter()
            .map(|text| text.chars().map(|c| c == 'x').collect());
        Ok(spans.collect())
    }
}
