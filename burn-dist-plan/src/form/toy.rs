//! Operations of the toy language.

use super::{Failed, Form, Reader, Writer, form, read_tensor, write_tensor};
use crate::toy::{Astray, Kind, Toy, Value};

form!(struct Toy { "" out, " and " also or None, " = " kind, " " inputs });
form!(enum Kind {
    "add" => Add, "sub" => Sub, "mul" => Mul, "exp" => Exp, "scale" => Scale(" " slot),
    "power" => Power(" " times), "matmul" => Matmul,
    "transpose" => Transpose, "sum_dim" => SumDim(" " dim), "sum" => Sum, "reshape" => Reshape, "expand" => Expand,
    "slice" => Slice(" dim " dim, " from " range), "linear" => Linear, "linear_x" => LinearX, "linear_w" => LinearW,
    "lookup" => Lookup { " of " size, " rows " rows },
    "sum_at" => SumAt { " of " size, " rows " rows, " base" base or false }, "add_at" => AddAt,
    "concat" => Concat(" " dim), "cast" => Cast, "like" => Like,
    "float8" => Float8(" " op), "meet" => Meet, "meet_back" => MeetBack,
    "astray" => Astray(" " how), "random" => Random, "unary" => Unary(" " unary), "binary" => Binary(" " binary), "max_dim" => MaxDim(" " dim),
    "full" => Full(" " number), "mark" => Mark(" " mark),
});
form!(enum Astray { "all_the_way" => AllTheWay, "forgets" => Forgets, "alone" => Alone, "farther" => Farther });

impl Form for Value {
    fn write(&self, to: &mut Writer<'_>) {
        write_tensor(self.tensor(), to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        read_tensor(from, |tensor| Self {
            id: tensor.id,
            shape: tensor.shape.to_vec(),
            dtype: tensor.dtype,
            last_use: tensor.last_use,
        })
    }
}
