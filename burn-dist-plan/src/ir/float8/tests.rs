//! Small cases: how many scales a tensor has, which of them an element has, and the operands of products.

use super::*;

/// Returns the number of an element, or of a scale, by its place.
fn number(shape: &[usize], place: &[usize]) -> usize {
    let dims = shape.iter().zip(place);
    dims.fold(0, |number, (size, at)| number * size + at)
}

#[test]
fn an_element_has_the_scale_of_its_piece() {
    use ScaleOf::{Block, Column, ColumnTile, Row, RowTile, Tensor};
    type Case = (
        ScaleOf,
        &'static [usize],
        &'static [usize],
        &'static [usize],
        &'static [usize],
    );
    // A tensor, the shape of its scales, an element, and its scale.
    let cases: [Case; 7] = [
        (Tensor, &[3, 4], &[1], &[2, 3], &[0]),
        (Row, &[2, 3, 4], &[2, 3, 1], &[1, 2, 3], &[1, 2, 0]),
        (Column, &[2, 3, 4], &[4], &[1, 2, 3], &[3]),
        (RowTile, &[3, 300], &[3, 3], &[2, 290], &[2, 2]),
        (
            ColumnTile,
            &[2, 300, 5],
            &[2, 3, 5],
            &[1, 299, 4],
            &[1, 2, 4],
        ),
        (
            Block,
            &[2, 300, 130],
            &[2, 3, 2],
            &[1, 299, 129],
            &[1, 2, 1],
        ),
        (
            Block,
            &[2, 300, 130],
            &[2, 3, 2],
            &[1, 127, 127],
            &[1, 0, 0],
        ),
    ];
    for (of, shape, scales, element, scale) in cases {
        let what = format!("{of:?} of {shape:?}, element {element:?}");
        assert_eq!(of.shape(shape), scales, "{what}");
        let found = of.index(shape, number(shape, element));
        assert_eq!(found, number(scales, scale), "{what}");
    }
}

#[test]
fn runs_are_all_elements_in_order_with_their_scales() {
    use ScaleOf::{Block, Column, ColumnTile, Row, RowTile, Tensor};
    let shapes: [&[usize]; 8] = [
        &[],
        &[1],
        &[300],
        &[0, 3],
        &[3, 0],
        &[130, 1],
        &[2, 129, 257],
        &[2, 2, 3, 128],
    ];
    for of in [Tensor, Row, Column, RowTile, ColumnTile, Block] {
        for shape in shapes {
            let runs = of.runs(shape);
            let found = runs.flat_map(|(run, scale)| run.map(move |element| (element, scale)));
            let elements = 0..shape.iter().product();
            let expected = elements.map(|element| (element, of.index(shape, element)));
            assert!(found.eq(expected), "{of:?} of {shape:?}");
        }
    }
}

#[test]
fn a_product_has_its_operands_and_their_scales() {
    let (product, scales) = (Product::Forward, [ScaleOf::Tensor; 2]);
    let formats = [Fp8::E4M3; 2];
    let whole = Float8Op::Product {
        product,
        scales,
        formats,
    };
    assert_eq!(whole.num_operands(), Some(4));
    let of_rank = Float8Op::ProductOfRank {
        product,
        scales,
        formats,
        power_of_two: false,
    };
    assert_eq!(of_rank.num_operands(), Some(2));
    assert_eq!(Float8Op::Stack.num_operands(), None);
}

/// A product in 8 bits stands for that of a layer: it has its place in a backward, and its flops.
#[test]
fn products_are_known_as_those_of_layers() {
    use crate::ir::Op;
    use crate::toy::{Builder, Kind};
    let [x, w, y]: [&[usize]; 3] = [&[2, 3, 4], &[4, 5], &[2, 3, 5]];
    for (product, kind, operands, out) in [
        (Product::Forward, Kind::Linear, [x, w], y),
        (Product::Input, Kind::LinearX, [w, y], x),
        (Product::Weight, Kind::LinearW, [x, y], w),
    ] {
        let mut b = Builder::new("");
        let inputs = operands.map(|shape| b.data(shape));
        b.op(kind, &inputs, out);
        let layer = &b.window.ops[0];
        let op = Float8Op::Product {
            product,
            scales: [ScaleOf::Tensor; 2],
            formats: [Fp8::E4M3; 2],
        };
        assert_eq!(op.traits().adjoint, layer.traits().adjoint, "{product:?}");
        let scale: &[usize] = &[1];
        let shapes = Shapes {
            inputs: [&operands[..], &[scale; 2]].concat(),
            outputs: vec![out],
        };
        assert_eq!(op.product_flops(&shapes), Some(2.0 * (6 * 4 * 5) as f64));
        assert_eq!(layer.product_flops(), op.product_flops(&shapes));
    }
}
