//! JSON files that lie, for readers of files beside a model's weights.

use crate::hostile::Content::{self, Bytes, Link, Sparse};

/// Returns them, by name.
pub(crate) fn usual() -> Vec<(&'static str, Content)> {
    let list = |value: &str, count: usize| {
        let many = vec![value; count].join(",");
        Bytes(format!("{{\"eos_token_id\":[{many}],\"x\":[{many}]}}").into_bytes())
    };
    vec![
        ("device", Link("/dev/zero")),
        ("hole", Sparse(b"{\"a\":[".to_vec(), 1 << 40)),
        ("numbers", list("0", 200_000)),
        ("small objects", list("{\"\":0}", 30_000)),
        (
            "deep",
            Bytes(format!("{{\"x\":{}", "[".repeat(100_000)).into_bytes()),
        ),
        ("long", Bytes(vec![b' '; 100 << 20])),
    ]
}
