use super::*;

#[test]
fn policies_have_a_text_form() {
    for text in ["none", "full", "every=3", "selective", "bytes=1048576"] {
        let policy: Checkpoint = text.parse().expect("a policy");
        assert_eq!(policy.to_string(), text);
    }
    for text in ["", "all", "every", "every=0", "bytes=-1", "full=2"] {
        let error = text.parse::<Checkpoint>().expect_err(text);
        assert!(error.to_string().contains("every=N with N of at least 1"));
    }
}
