//! Which parameter is which tensor.

use crate::hf::{Form, Names, NamesProblem};
use proptest::prelude::*;

/// The names of a Llama, as the example has them.
pub(super) const LLAMA: &str = r#"
# Parameter = tensor, form
tok_embeddings.weight = "model.embed_tokens.weight"
"layers.*.attention_norm.gamma" = "model.layers.*.input_layernorm.weight"
"layers.*.attention.wq.weight" = "model.layers.*.self_attn.q_proj.weight, rotary(head_dim)"
"layers.*.attention.wk.weight" = "model.layers.*.self_attn.k_proj.weight, rotary(head_dim)"
"layers.*.attention.wv.weight" = "model.layers.*.self_attn.v_proj.weight, transposed"
"layers.*.attention.wo.weight" = "model.layers.*.self_attn.o_proj.weight, transposed"
"layers.*.ffn_norm.gamma" = "model.layers.*.post_attention_layernorm.weight"
"layers.*.feed_forward.w1.weight" = "model.layers.*.mlp.gate_proj.weight, transposed"
"layers.*.feed_forward.w2.weight" = "model.layers.*.mlp.down_proj.weight, transposed"
"layers.*.feed_forward.w3.weight" = "model.layers.*.mlp.up_proj.weight, transposed"
norm.gamma = "model.norm.weight"
output.weight = "lm_head.weight, transposed"
ignored = ["model.layers.*.self_attn.rotary_emb.inv_freq"]
"#;

#[test]
fn names_lead_there_and_back() {
    let names = Names::parse(LLAMA, &[("head_dim", 64)]).unwrap();
    let rotary = Form::Rotary { head_dim: 64 };
    for (parameter, tensor, form) in [
        (
            "tok_embeddings.weight",
            "model.embed_tokens.weight",
            Form::Same,
        ),
        (
            "layers.31.attention.wk.weight",
            "model.layers.31.self_attn.k_proj.weight",
            rotary,
        ),
        (
            "layers.0.feed_forward.w2.weight",
            "model.layers.0.mlp.down_proj.weight",
            Form::Transposed,
        ),
        ("output.weight", "lm_head.weight", Form::Transposed),
    ] {
        assert_eq!(names.tensor(parameter), Some((tensor.to_owned(), form)));
        assert_eq!(names.parameter(tensor), Some((parameter.to_owned(), form)));
        assert!(!names.is_ignored(tensor));
    }
    for other in [
        "layers.0.attention.wq",
        "layers.0.1.attention.wq.weight",
        "layers..attention.wq.weight",
        "",
        "norm.gamma.x",
    ] {
        assert_eq!(names.tensor(other), None, "{other}");
    }
    assert_eq!(
        names.parameter("model.layers.0.self_attn.rotary_emb.inv_freq"),
        None
    );
    assert!(names.is_ignored("model.layers.0.self_attn.rotary_emb.inv_freq"));
    let text = names.to_string();
    let again = Names::parse(&text, &[]).unwrap();
    assert_eq!(again.to_string(), text);
    assert_eq!(
        again.tensor("layers.3.attention.wq.weight"),
        names.tensor("layers.3.attention.wq.weight")
    );
}

#[test]
fn errors_name_the_line_that_makes_no_sense() {
    let error = |text: &str| Names::parse(text, &[("odd", 7)]).unwrap_err();
    let problem = |text: &str, line| {
        let found = error(text);
        assert_eq!(found.line, line, "{found}");
        found.problem
    };
    assert!(matches!(
        problem("a = \"b\"\n\nb = [\n", 3),
        NamesProblem::Toml(_)
    ));
    assert!(matches!(
        problem("a = \"b\"\nlayers.*.b = \"c\"", 2),
        NamesProblem::Toml(_)
    ));
    assert!(matches!(
        problem("a = \"b\"\na = \"c\"", 2),
        NamesProblem::Toml(_)
    ));
    assert_eq!(problem("a = \"b\"\nc = 3", 2), NamesProblem::Row);
    assert_eq!(problem("c = [\"a\"]", 1), NamesProblem::Row);
    assert_eq!(problem("ignored = [\n\"a\",\n3]", 3), NamesProblem::Row);
    assert_eq!(
        problem("ignored = [\n\"a..b\"]", 2),
        NamesProblem::Path("a..b".into())
    );
    for path in ["a*.b", "**", "a b", "a.", ""] {
        assert_eq!(
            problem(&format!("\n\"a\" = \"{path}\""), 2),
            NamesProblem::Path(path.into())
        );
    }
    for form in [
        "turned",
        "",
        "rotary",
        "rotary()",
        "rotary(3)",
        "rotary(0)",
        "rotary(2",
        "rotary(-2)",
        "rotary(64) x",
    ] {
        let found = problem(&format!("a = \"b, {form}\""), 1);
        let is_form = matches!(found, NamesProblem::Form(_) | NamesProblem::Width(_));
        assert!(is_form, "{form}: {found}");
    }
    assert_eq!(
        problem("a = \"b, rotary(head_dim)\"", 1),
        NamesProblem::Width("head_dim".into())
    );
    assert_eq!(
        problem("a = \"b, rotary(odd)\"", 1),
        NamesProblem::Width("odd".into())
    );
    assert!(matches!(
        problem("\n\"a.*\" = \"b\"", 2),
        NamesProblem::Gaps { .. }
    ));
    assert!(matches!(
        problem("\"a.*\" = \"b.*.*\"", 1),
        NamesProblem::Gaps { .. }
    ));
    // Both a parameter with two tensors and a tensor with two parameters.
    let overlap = NamesProblem::Overlap {
        own: "a.0".into(),
        other: "a.*".into(),
        line: 1,
    };
    assert_eq!(problem("\"a.*\" = \"b.*\"\n\"a.0\" = \"c\"", 2), overlap);
    assert!(matches!(
        problem("\"a.*.x\" = \"b.*\"\nc = \"d\"\n\"e.*\" = \"b.*\"", 3),
        NamesProblem::Overlap { line: 1, .. }
    ));
    assert!(matches!(
        problem("\"a.*.x\" = \"c.*\"\n\"a.y.*\" = \"d.*\"", 2),
        NamesProblem::Overlap { .. }
    ));
    assert!(
        error("a = \"b\"\nc = 3")
            .to_string()
            .starts_with("line 2: write ")
    );
}

proptest! {
    #[test]
    fn what_a_row_gives_it_takes_back(gaps in proptest::collection::vec("[a-z0-9_]{1,4}", 2)) {
        let names = Names::parse("\"a.*.b.*\" = \"*.c.*, transposed\"", &[]).unwrap();
        let parameter = format!("a.{}.b.{}", gaps[0], gaps[1]);
        let (tensor, _) = names.tensor(&parameter).unwrap();
        prop_assert_eq!(&tensor, &format!("{}.c.{}", gaps[0], gaps[1]));
        prop_assert_eq!(names.parameter(&tensor), Some((parameter, Form::Transposed)));
    }
}

#[test]
fn stacked_tensors_have_a_number_each() {
    let text = "\"layers.*.experts.up\" = \"model.layers.*.experts.*.up.weight, stacked\"\n";
    let names = Names::parse(text, &[]).unwrap();
    assert_eq!(names.to_string(), text);
    let (name, form) = names.tensor("layers.3.experts.up").unwrap();
    assert_eq!(name, "model.layers.3.experts.*.up.weight");
    let members = form.members(&name, &[2, 4, 5]);
    let named = |number: usize| {
        let name = format!("model.layers.3.experts.{number}.up.weight");
        (name, Form::Transposed, vec![4, 5])
    };
    assert_eq!(members, [named(0), named(1)]);
    let error = Names::parse("\"a.*\" = \"b.*, stacked\"", &[]).unwrap_err();
    assert!(
        matches!(error.problem, NamesProblem::Gaps { .. }),
        "{error}"
    );
}

/// The elements of a region, in their order, wherever its borders are.
#[test]
fn regions_of_a_stack_are_regions_of_its_matrices() {
    use crate::Region;
    let (num, each) = (4, 6);
    let regions = [
        (vec![4, 2, 3], vec![1, 0, 0], vec![2, 2, 3]),
        (vec![4, 2, 3], vec![0, 1, 1], vec![4, 1, 2]),
        (vec![2, 2, 6], vec![1, 0, 2], vec![1, 2, 3]),
        (vec![24], vec![4], vec![15]),
        (vec![3, 8], vec![1, 2], vec![2, 5]),
        (vec![24], vec![5], vec![0]),
    ];
    for (grid, start, extent) in regions {
        let region = Region::new(grid, start, extent).unwrap();
        let parts = region.by_parts(num, each).unwrap();
        let found = parts.into_iter().flat_map(|(number, part)| {
            let elements = part.ranges().flatten();
            elements.map(move |element| number * each + element)
        });
        let expected: Vec<usize> = region.ranges().flatten().collect();
        assert_eq!(found.collect::<Vec<_>>(), expected, "{region}");
    }
}
