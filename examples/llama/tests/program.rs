//! The program under its own name: what it does is tested in `burn-dist-lm`.

use std::process::Command;

fn printed(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_llama"))
        .args(args)
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn it_has_all_commands_under_its_own_name() {
    let version = concat!("llama ", env!("CARGO_PKG_VERSION"));
    assert_eq!(printed(&["--version"]).trim_end(), version);
    let help = printed(&["--help"]);
    assert!(help.starts_with(env!("CARGO_PKG_DESCRIPTION")), "{help}");
    assert!(help.contains("Usage: llama <COMMAND>"), "{help}");
    for command in [
        "pretrain", "finetune", "generate", "explain", "simulate", "config", "mesh",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    let config = printed(&["config", "--mesh", "fsdp=2"]);
    let head = config.lines().next().unwrap_or_default();
    assert!(head.contains(version), "{config}");
}
