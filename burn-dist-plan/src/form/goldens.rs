//! Texts after every pass: of three layers, and of a block of a Llama on several meshes.

use similar::{DiffTag, TextDiff};

use super::block::{block, experts, ring};
use super::{laws, parse};

use crate::mesh::{Nodes, Rank};
use crate::planner::finish;
use crate::tests::factors::by_factors;
use crate::tests::three_layers;
use crate::toy::{Builder, Toy, options};
use crate::{Float, PASSES, PlanOptions, Policy, Precision, Regions, ScheduleKind, plan};

/// Returns how a text differs from the one before, line by line: below which line, how many go, and which come.
fn changes(before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let mut text = String::new();
    for change in TextDiff::from_slices(&old, &new).ops() {
        if change.tag() == DiffTag::Equal {
            continue;
        }
        let (out, into) = (change.old_range(), change.new_range());
        let above = out.start.checked_sub(1).map_or("", |line| old[line]);
        let above = above.split('=').next().unwrap_or_default().trim();
        let above: String = above.chars().take(32).collect();
        text.push_str(&format!("@ {}\n", above.trim_end()));
        if !out.is_empty() {
            text.push_str(&format!("-{}\n", out.len()));
        }
        text.extend(new[into].iter().map(|line| format!("+{line}\n")));
    }
    text
}

/// Texts that others are compared with.
#[derive(Clone, Copy)]
enum Like<'a> {
    /// None.
    Nothing,
    /// The text after the first pass.
    First(&'a [String]),
    /// The texts after the same passes.
    Each(&'a [String]),
}

/// Compares the texts after all passes with those that are kept, and goes on from each of them to the plan. What is
/// kept is the text after the first pass, and what each later one changes. Returns the texts.
///
/// `like` has the texts of a window that differs in little: what is kept is by what the text after the first pass, or
/// after each one, differs from that.
fn golden(name: &str, b: &Builder, options: &PlanOptions, like: Like<'_>) -> Vec<String> {
    let texts = laws::check(b, options, name);
    let planned = plan(&b.window, &b.mesh, options).expect("a plan");
    let mut kept = String::new();
    for (index, ((pass, _), text)) in PASSES.iter().zip(&texts).enumerate() {
        kept.push_str(&format!("===== after {pass}\n"));
        let before = match (like, index) {
            (Like::First(of), 0) => Some(&of[0]),
            (Like::Each(of), _) => Some(&of[index]),
            _ => texts[..index].last(),
        };
        match before {
            None => kept.push_str(text),
            Some(before) => {
                kept.push_str(&changes(before, text));
            }
        }
        let mut read = parse::<Toy>(text, &b.mesh, options).expect("the law holds");
        read.run_from(index + 1, None).expect("the other passes");
        assert_eq!(finish(read, &b.window), planned, "{name}: on from {pass}");
    }
    insta::assert_snapshot!(name, kept);
    texts
}

/// Options for rank 0 alone: what its tasks are, is what is kept.
fn first_rank(b: &Builder) -> PlanOptions {
    PlanOptions {
        ranks: vec![Rank(0)],
        ..options(&b.mesh)
    }
}

/// On two nodes of two ranks each, collectives over both are composed.
fn two_nodes(b: &Builder) -> PlanOptions {
    PlanOptions {
        topology: Nodes::Each(2).topology(4, &[]).expect("nodes"),
        hierarchy_bytes_min: Some(0),
        ..first_rank(b)
    }
}

#[test]
fn three_layers_on_two_nodes() {
    let b = three_layers("fsdp=4", 8).under(Policy {
        checkpoint: "full".parse().expect("a policy"),
        offload: "params".parse().expect("an offload"),
        precision: Precision::new(Float::BF16),
        ..Policy::default()
    });
    golden("three_layers", &b, &two_nodes(&b), Like::Nothing);
}

#[test]
fn a_block_on_meshes() {
    let b = block("fsdp=2", 1, None);
    let fsdp = golden("fsdp", &b, &first_rank(&b), Like::Nothing);
    let like = Like::First(&fsdp);
    let in_regions = PlanOptions {
        regions: Regions::On,
        ..first_rank(&b)
    };
    golden("regions", &b, &in_regions, Like::Each(&fsdp));

    let b = block("fsdp=2,tp=2", 1, None).under(Policy {
        async_tp: "on".parse().expect("a policy"),
        ..Policy::default()
    });
    golden("fsdp_tp", &b, &first_rank(&b), like);

    let b = block("dp=2,fsdp=2", 1, None);
    golden("dp_fsdp", &b, &first_rank(&b), like);

    let b = block("fsdp=4", 1, None).under(Policy {
        checkpoint: "selective".parse().expect("a policy"),
        ..Policy::default()
    });
    golden("two_nodes", &b, &two_nodes(&b), like);

    let b = block("cp=2", 1, None);
    golden("cp", &b, &first_rank(&b), like);
}

#[test]
fn an_update_by_factors() {
    let b = by_factors("fsdp=2", [6, 8]);
    golden("factors", &b, &first_rank(&b), Like::Nothing);
}

#[test]
fn keys_that_go_round() {
    let b = ring("cp=2").under(Policy {
        context: "ring".parse().expect("a policy"),
        ..Policy::default()
    });
    golden("cp_ring", &b, &first_rank(&b), Like::Nothing);
}

#[test]
fn experts_over_ep() {
    let b = experts("ep=2");
    golden("ep", &b, &first_rank(&b), Like::Nothing);
}

#[test]
fn a_block_of_two_stages() {
    let b = block("pp=2", 2, Some(ScheduleKind::OneFOneB));
    let other = golden("pp_1f1b", &b, &first_rank(&b), Like::Nothing);
    let b = block("pp=2", 2, Some(ScheduleKind::ZbH1));
    golden("pp_zb_h1", &b, &first_rank(&b), Like::Each(&other));
}
