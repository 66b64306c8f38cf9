//! Operations of the toy language.

use super::facts::{read_tensor, write_tensor};
use super::{Failed, Form, Reader, Writer, form};
use crate::float8::{Float8Op, Product, ScaleOf, Ways as Order};
use crate::policy::Fp8;
use crate::toy::{Astray, Kind, Toy, Value};

form!(struct Toy { "" out, " and " also or None, " = " kind, " " inputs });
form!(enum Kind {
    "add" => Add, "sub" => Sub, "mul" => Mul, "exp" => Exp, "scale" => Scale(" " slot), "matmul" => Matmul,
    "transpose" => Transpose, "sum_dim" => SumDim(" " dim), "sum" => Sum, "reshape" => Reshape, "expand" => Expand,
    "slice" => Slice(" dim " dim, " from " range), "linear" => Linear, "linear_x" => LinearX, "linear_w" => LinearW,
    "lookup" => Lookup { " of " size, " rows " rows },
    "sum_at" => SumAt { " of " size, " rows " rows, " base" base or false },
    "concat" => Concat(" " dim), "cast" => Cast, "float8" => Float8(" " op), "meet" => Meet, "meet_back" => MeetBack,
    "astray" => Astray(" " how), "random" => Random, "unary" => Unary(" " unary), "binary" => Binary(" " binary), "max_dim" => MaxDim(" " dim),
    "full" => Full(" " number), "mark" => Mark(" " mark),
});
form!(enum Astray { "all_the_way" => AllTheWay, "forgets" => Forgets, "alone" => Alone });
form!(enum Float8Op {
    "amax" => Amax(" " of),
    "stack" => Stack,
    "scale" => Scale { " " format, " power_of_two" power_of_two or false },
    "quantize" => Quantize { " " of, " " format, " at_rest" at_rest or false, " " ways },
    "product_of_rank" => ProductOfRank { " " product, " " scales, " " formats, " power_of_two" power_of_two or false },
    "product" => Product { " " product, " " scales, " " formats },
});
form!(enum ScaleOf {
    "tensor" => Tensor, "row" => Row, "column" => Column, "row_tile" => RowTile, "column_tile" => ColumnTile,
    "block" => Block,
});
form!(enum Order { "as_is" => AsIs, "turned" => Turned, "both" => Both });
form!(enum Product { "forward" => Forward, "input" => Input, "weight" => Weight });
form!(enum Fp8 { "e4m3" => E4M3, "e5m2" => E5M2 });

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
