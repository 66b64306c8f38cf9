//! Operations of float8 training.

use super::{Failed, Form, Reader, Writer, form};
use crate::float8::{Float8Op, Product, ScaleOf, Ways as Order};
use crate::policy::Fp8;

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
