//! The formulas of operations.

use super::{Kind, Toy};
use crate::ir::region::{
    Binary, Fold, Formula, Instruction, Number, Pointwise, ScalarOf, Typed, Unary,
};

/// See [`Op::pointwise`](crate::ir::Op::pointwise).
pub(super) fn pointwise(op: &Toy) -> Option<Pointwise> {
    let mut scalars = Vec::new();
    let unary = |unary| vec![Instruction::Unary(unary, 0)];
    let binary = |binary| vec![Instruction::Binary(binary, 0, 1)];
    let instructions = match &op.kind {
        Kind::Add => binary(Binary::Add),
        Kind::Sub => binary(Binary::Sub),
        Kind::Mul => binary(Binary::Mul),
        Kind::Binary(of) => binary(*of),
        Kind::Exp => unary(Unary::Exp),
        Kind::Unary(of) => unary(*of),
        // Each time, of the one before and the operand.
        Kind::Power(times) => (0..*times)
            .map(|before| Instruction::Binary(Binary::Mul, before, 0))
            .collect(),
        Kind::Scale(slot) => {
            scalars.push(ScalarOf::Slot(*slot));
            vec![
                Instruction::Scalar(0),
                Instruction::Binary(Binary::Mul, 0, 1),
            ]
        }
        Kind::AddAt => vec![Instruction::AddAt {
            to: 0,
            index: 1,
            value: 2,
        }],
        Kind::Cast => vec![Instruction::Cast(0)],
        Kind::Expand => Vec::new(),
        Kind::Full(number) => vec![Instruction::Constant(Number::Int(*number))],
        Kind::MaxDim(dim) if dim + 1 == op.out.shape.len() => {
            vec![Instruction::Fold(Fold::Max, 0)]
        }
        Kind::SumDim(dim) => return Some(Pointwise::Sum { dims: vec![*dim] }),
        Kind::Sum => {
            let dims = (0..op.out.shape.len()).collect();
            return Some(Pointwise::Sum { dims });
        }
        Kind::Reshape => return Some(Pointwise::Reshape),
        _ => return None,
    };
    let typed = instructions.into_iter().map(|instruction| Typed {
        instruction,
        dtype: op.out.dtype,
    });
    let instructions: Vec<Typed> = typed.collect();
    let operands: Vec<_> = op.inputs.iter().map(|input| input.dtype).collect();
    let last = operands.len() + instructions.len() - 1;
    Some(Pointwise::Formula {
        formula: Formula {
            operands,
            instructions,
            results: vec![last as u32],
        },
        scalars,
    })
}
