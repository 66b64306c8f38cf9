//! `burn-dist ckpt`: the [tools](crate::tools) as commands.

mod convert;

use crate::format::{MANIFEST, TensorEntry};
use crate::storage::Disk;
use crate::tools::{consolidate, diff, inspect, reshard, verify};
use crate::{Checkpoint, CheckpointError, Checkpoints, SaveId, SavePlan, Tensor};
use burn_dist_layout::{Layout, by_rows};
use burn_dist_mesh::{MeshShape, Rank};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Something that was asked for could not be read or written.
const FAILED: u8 = 2;

/// Looks at checkpoints, verifies, compares and rewrites them, whatever their size.
///
/// A checkpoint is named by its directory, or by that of the run: then its last one is meant.
#[derive(clap::Args)]
pub struct Ckpt {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Shows the tree of tensors with their shapes, layouts and sizes.
    Inspect {
        /// The checkpoint.
        checkpoint: PathBuf,
    },
    /// Reads everything and compares it with its checksums. Exits with 1 if something is wrong.
    Verify {
        /// The checkpoint.
        checkpoint: PathBuf,
    },
    /// Compares two checkpoints bit by bit, whatever pieces they are in. Exits with 1 if they differ.
    Diff {
        /// One.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// Writes all tensors, whole, to one plain safetensors file.
    Consolidate {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The file; it must not be there yet.
        file: PathBuf,
    },
    /// Writes the same tensors in other pieces: rows split evenly over so many files.
    Reshard {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The directory of the run that gets it, as the same step.
        to: PathBuf,
        /// How many files.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
        files: u16,
    },
    Convert(convert::Convert),
}

impl Ckpt {
    /// Does it, and tells errors.
    pub fn run(self) -> ExitCode {
        match self.command.run(&mut io::stdout()) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                // Whoever has closed it does not read it.
                let _ = writeln!(io::stderr(), "{error}");
                FAILED.into()
            }
        }
    }
}

impl Command {
    /// Does it; returns whether all is well, or alike.
    fn run(self, out: &mut dyn Write) -> Result<bool, Box<dyn std::error::Error>> {
        match self {
            Self::Inspect { checkpoint } => {
                let (_, checkpoint) = open(&checkpoint)?;
                write!(out, "{}", inspect(&checkpoint))?;
            }
            Self::Verify { checkpoint } => {
                let (_, checkpoint) = open(&checkpoint)?;
                let found = verify(&checkpoint)?;
                for problem in &found.problems {
                    writeln!(out, "{problem}")?;
                }
                let (files, blocks, bytes) = (found.files, found.blocks, found.bytes);
                writeln!(
                    out,
                    "{files} file(s), {blocks} block(s), {bytes} byte(s) are as saved; {} problem(s)",
                    found.problems.len()
                )?;
                return Ok(found.problems.is_empty());
            }
            Self::Diff { first, second } => {
                let difference = diff(&open(&first)?.1, &open(&second)?.1)?;
                writeln!(out, "{difference}")?;
                return Ok(difference.is_empty());
            }
            Self::Consolidate { checkpoint, file } => {
                if file.exists() {
                    return Err(format!("{} is there already", file.display()).into());
                }
                consolidate(&open(&checkpoint)?.1, &Disk, &file)?;
                writeln!(out, "{}", file.display())?;
            }
            Self::Reshard {
                checkpoint,
                to,
                files,
            } => {
                let (step, checkpoint) = open(&checkpoint)?;
                let plan = rows(&checkpoint, files)?;
                let save_id = SaveId::random()?;
                let path = reshard(&checkpoint, &Checkpoints::at(to), step, save_id, &plan)?;
                writeln!(out, "{}", path.display())?;
            }
            Self::Convert(convert) => convert.run(out)?,
        }
        Ok(true)
    }
}

/// Opens a checkpoint, or the last one of a run; returns its step too, as its directory names it.
fn open(path: &Path) -> Result<(u64, Checkpoint), Box<dyn std::error::Error>> {
    if path.join(MANIFEST).exists() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let step = name.rsplit('-').next().and_then(|step| step.parse().ok());
        return Ok((step.unwrap_or(0), Checkpoint::open(path)?));
    }
    let checkpoints = Checkpoints::at(path);
    let newest = checkpoints.newest()?;
    for passed in newest.passed_over {
        let _ = writeln!(io::stderr(), "warning: {passed}; it is passed over");
    }
    let Some(step) = newest.step else {
        let path = path.display();
        let text = format!("{path} has neither a {MANIFEST} nor a checkpoint (step-...) in it");
        return Err(text.into());
    };
    Ok((step, checkpoints.open(step)?))
}

/// Returns the plan by which each of so many files has its rows of every tensor.
fn rows(checkpoint: &Checkpoint, files: u16) -> Result<SavePlan, Box<dyn std::error::Error>> {
    let mesh = MeshShape::new([("fsdp", usize::from(files))])?;
    let tensor = |entry: &TensorEntry| {
        let dtype = entry.dtype().ok_or_else(|| {
            let TensorEntry { key, dtype, .. } = entry;
            format!("{key} is of the unknown type {dtype}")
        })?;
        let layout: Layout = by_rows(&mesh, &entry.shape);
        Ok(Tensor::new(entry.key.as_str(), dtype, layout))
    };
    let tensors = checkpoint.manifest().tensors.iter().map(tensor);
    let tensors = tensors.collect::<Result<Vec<_>, String>>()?;
    let writers: Vec<usize> = mesh.ranks().map(|Rank(rank)| rank as usize).collect();
    let plan: Result<SavePlan, CheckpointError> = SavePlan::new(&mesh, tensors, &writers);
    Ok(plan?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::state::State;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        ckpt: Ckpt,
    }

    /// Returns the output of a command, and whether all is well; or the error.
    fn ckpt(args: &[&str]) -> Result<(String, bool), String> {
        let program = Program::try_parse_from([&["ckpt"], args].concat());
        let command = program.map_err(|error| error.to_string())?.ckpt.command;
        let mut out = Vec::new();
        let well = command.run(&mut out).map_err(|error| error.to_string())?;
        Ok((String::from_utf8_lossy(&out).into_owned(), well))
    }

    #[test]
    fn commands_do_what_they_say() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        State::seeded(5)
            .save(&Checkpoints::at(at("run")), 7, 1)
            .unwrap();
        State::seeded(6)
            .save(&Checkpoints::at(at("other")), 7, 1)
            .unwrap();
        let (run, other, rows) = (at("run"), at("other"), at("rows"));
        let one = at("run/step-0000000007");

        let (tree, _) = ckpt(&["inspect", &run]).unwrap();
        assert_eq!(ckpt(&["inspect", &one]).unwrap().0, tree);
        assert!(
            tree.contains("weight") && tree.contains("[{fsdp}, -]"),
            "{tree}"
        );
        let (said, well) = ckpt(&["verify", &one]).unwrap();
        assert!(
            well && said.contains("4 file(s)") && said.contains("0 problem(s)"),
            "{said}"
        );

        let (path, _) = ckpt(&["reshard", &run, &rows, "--files", "3"]).unwrap();
        assert_eq!(path.trim(), at("rows/step-0000000007"));
        assert_eq!(
            ckpt(&["diff", &run, &rows]).unwrap(),
            ("6 tensors are equal\n".into(), true)
        );
        let (said, same) = ckpt(&["diff", &run, &other]).unwrap();
        assert!(!same && said.contains("changed"), "{said}");

        let file = at("whole.safetensors");
        ckpt(&["consolidate", &rows, &file]).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let names = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert!(
            names
                .names()
                .iter()
                .any(|name| **name == *"layers.0.weight")
        );
        assert!(
            ckpt(&["consolidate", &rows, &file])
                .unwrap_err()
                .contains("already")
        );

        let piece = at("rows/step-0000000007/00001-of-00003.safetensors");
        let mut bytes = std::fs::read(&piece).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&piece, bytes).unwrap();
        let (said, well) = ckpt(&["verify", &rows]).unwrap();
        assert!(!well && said.contains("1 problem(s)"), "{said}");
    }

    #[test]
    fn records_folders_and_checkpoints_are_converted() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/burn-0.21");
        let sample = samples.join("model.mpk").display().to_string();
        let names = at("names.toml");
        let text =
            "\"layers.*.linear.weight\" = \"l.*.w, transposed\"\nscale = \"s, rotary(width)\"\n";
        let rest = [
            "embedding",
            "layers.0.linear.bias",
            "layers.0.norm.gamma",
            "mask",
            "steps",
        ];
        let rest = rest.map(|name| format!("{name} = \"{name}\"\n")).concat();
        std::fs::write(&names, format!("{text}{rest}")).unwrap();
        let convert =
            |from: &str, to: &str, more: &[&str]| ckpt(&[&["convert", from, to], more].concat());

        let error = convert(&sample, &at("hf"), &[]).unwrap_err();
        assert!(
            error.contains("does not say what is to be written"),
            "{error}"
        );
        let named = ["--to", "hf", "--names", &names];
        let error = convert(&sample, &at("hf"), &named).unwrap_err();
        assert!(
            error.contains("names.toml cannot be used: line 2: the width `width`"),
            "{error}"
        );
        // Three elements are no whole heads.
        let error = convert(
            &sample,
            &at("hf"),
            &[&named[..], &["--width", "width=2"]].concat(),
        );
        assert!(
            error
                .unwrap_err()
                .contains("scale: a parameter of shape [3] cannot be held rotary(2)")
        );
        std::fs::write(
            &names,
            format!("{text}{rest}").replace(", rotary(width)", ""),
        )
        .unwrap();

        let more = ["--shard-bytes", "60B"];
        let (said, _) = convert(&sample, &at("hf"), &[&named[..], &more].concat()).unwrap();
        assert!(
            said.contains("hf: a model in the form of Hugging Face of 8 parameters"),
            "{said}"
        );
        assert!(
            dir.path()
                .join("hf/model-00001-of-00003.safetensors")
                .exists()
        );
        convert(
            &at("hf"),
            &at("run"),
            &["--to", "checkpoint", "--names", &names],
        )
        .unwrap();
        convert(&sample, &at("other"), &["--to", "checkpoint"]).unwrap();
        let (same, is_same) = ckpt(&["diff", &at("run"), &at("other")]).unwrap();
        assert!(is_same, "{same}");
        convert(&at("run"), &at("a.bpk"), &["--dtype", "f16"]).unwrap();
        convert(&at("a.bpk"), &at("b.mpk"), &[]).unwrap();
        let error = convert(&at("a.bpk"), &at("b.mpk"), &[]).unwrap_err();
        assert!(error.contains("b.mpk is there already"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 6);
        for wrong in [
            ["--dtype", "i32"],
            ["--shard-bytes", "0"],
            ["--width", "a=2"],
            ["--to", "gguf"],
        ] {
            assert!(convert(&sample, &at("c.mpk"), &wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn errors_name_what_is_no_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display().to_string();
        let error = ckpt(&["inspect", &path]).unwrap_err();
        assert!(
            error.contains("neither a manifest.json nor a checkpoint"),
            "{error}"
        );
        let missing = dir.path().join("missing").display().to_string();
        assert!(ckpt(&["verify", &missing]).is_err());
        let none = ckpt(&["reshard", &path, &missing, "--files", "0"]).unwrap_err();
        assert!(none.contains("--files"), "{none}");
    }
}
