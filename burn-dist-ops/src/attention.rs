//! Scaled dot product attention as one operation.

use super::family::prelude::*;

family! {
    Attention |cx, op| {
        /// `(query, key, value, mask?, bias?)`.
        Attention(AttentionOpIr) float = B::attention(
            cx.float(&op.query),
            cx.float(&op.key),
            cx.float(&op.value),
            cx.bool_if(&op.mask),
            cx.float_if(&op.attn_bias),
            op.options.clone().into(),
        ),
    }
}

impl Operation for Attention<'_> {
    /// Per sample `b` and head `h`; columns `e` of the value are independent, and so are the rows `s` of the query
    /// unless the causal mask counts them from the top.
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let Self::Attention(op) = self;
        let scores = ", b h s -".repeat(shapes.inputs.len() - 3);
        let notation = format!("b h s -, b h - -, b h - e{scores} -> b h s e");
        let notation = match op.options.is_causal {
            true => notation.replace('s', "-"),
            false => notation,
        };
        RuleBuilder::notation(shapes, &notation).broadcast().build()
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Compute
    }

    fn traits(&self) -> Traits {
        Traits {
            work: Work::Layer,
            ..Traits::default()
        }
    }

    /// `2 (d + e)` per pair of a query and a key.
    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        let [query, key, value, ..] = shapes.inputs[..] else {
            return None;
        };
        let (&d, rows) = query.split_last()?;
        let (keys, e) = (key[key.len() - 2], *value.last()?);
        Some(2.0 * numel(rows) * keys as f64 * (d as f64 + e as f64))
    }

    fn makes(&self) -> bool {
        true
    }
}
