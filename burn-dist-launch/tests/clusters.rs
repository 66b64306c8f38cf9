//! The batch files of docs/guide/clusters.md: a shell runs them, with stand-ins for what Slurm has, and the code that
//! finds a process's place reads what they set.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use burn_dist_launch::{ClusterEnv, Launcher};
use burn_dist_mesh::MeshShape;

/// `srun`: starts the tasks one after the other, with the variables that Slurm and its PMI set.
const SRUN: &str = r#"#!/bin/bash
mpi=
while [ "${1#--}" != "$1" ]; do
  case $1 in --mpi=*) mpi=${1#--mpi=};; --cpu-bind=cores) ;; *) echo "srun knows no $1" >&2; exit 2;; esac
  shift
done
code=0
for task in $(seq 0 $((SLURM_NTASKS - 1))); do
  (
    export SLURM_PROCID=$task SLURM_STEP_NUM_TASKS=$SLURM_NTASKS
    export SLURM_LOCALID=$((task % SLURM_NTASKS_PER_NODE)) SLURM_NODEID=$((task / SLURM_NTASKS_PER_NODE))
    case $mpi in
      pmix) export PMIX_RANK=$task;;
      pmi2) export PMI_RANK=$task PMI_SIZE=$SLURM_NTASKS;;
      none) ;;
      *) echo "srun has no PMI $mpi" >&2; exit 2;;
    esac
    exec "$@"
  ) || code=$?
done
exit $code
"#;

/// `scontrol`: machines by name, and a note of what is to run again.
const SCONTROL: &str = r#"#!/bin/bash
case $1 in
  show) [ "$2 $3" = "hostnames node[7-8]" ] || exit 2; printf 'node7\nnode8\n';;
  requeue) echo "$2" > "$RECORDS/requeued";;
  *) exit 2;;
esac
"#;

/// The program: notes its variables and arguments, and ends as it is told.
const PROGRAM: &str = r#"#!/bin/bash
env -0 > "$RECORDS/$SLURM_PROCID.env"
printf '%s\n' "$@" > "$RECORDS/$SLURM_PROCID.arguments"
exit "$ENDS_WITH"
"#;

const OPENSSL: &str = "#!/bin/bash\nprintf '%064d\\n' 7\n";

/// The options that the files give to `sbatch`, as far as there are variables of them.
const VARIABLES: [(&str, &str); 3] = [
    ("nodes", "SLURM_NNODES"),
    ("ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
    ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
];

fn batch_files() -> Vec<String> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/clusters.md");
    let guide = fs::read_to_string(guide).unwrap();
    let blocks = guide.split("```sh\n").skip(1);
    let blocks = blocks.map(|rest| {
        rest.split_once("```")
            .expect("a closed block")
            .0
            .to_string()
    });
    blocks
        .filter(|block| block.starts_with("#!/bin/bash\n"))
        .collect()
}

/// Options of `sbatch` in a file.
fn options(file: &str) -> BTreeMap<&str, &str> {
    let lines = file
        .lines()
        .filter_map(|line| line.strip_prefix("#SBATCH --"));
    lines
        .map(|option| option.split_once('=').unwrap_or((option, "")))
        .collect()
}

/// A task of a file: its variables, and what the program was told.
struct Task {
    variables: BTreeMap<String, String>,
    arguments: Vec<String>,
}

/// Runs a file as Slurm would. Its tasks, its exit code, and whether it asked to run again.
fn run(file: &str, ends_with: u8) -> (Vec<Task>, Option<i32>, bool) {
    let folder = tempfile::tempdir().unwrap();
    let (programs, records) = (folder.path().join("bin"), folder.path().join("records"));
    fs::create_dir(&programs).unwrap();
    fs::create_dir(&records).unwrap();
    for (name, text) in [
        ("srun", SRUN),
        ("scontrol", SCONTROL),
        ("burn-dist-lm", PROGRAM),
        ("openssl", OPENSSL),
    ] {
        let path = programs.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let options = options(file);
    let number = |option: &str| -> usize { options[option].parse().expect("a number") };
    let tasks = number("nodes") * number("ntasks-per-node");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell
        .args(["-c", file])
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("RECORDS", &records)
        .env("ENDS_WITH", ends_with.to_string())
        .env("SLURM_JOB_ID", "4711")
        .env("SLURM_JOB_NODELIST", "node[7-8]")
        .env("SLURM_NTASKS", tasks.to_string())
        // A batch script is the first process of its job, without a step.
        .env("SLURM_PROCID", "0");
    for (option, variable) in VARIABLES {
        shell.env(variable, options[option]);
    }
    let output = shell.output().expect("bash");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "", "the file says something");
    let task = |number: usize| {
        let read =
            |what: &str| fs::read_to_string(records.join(format!("{number}.{what}"))).unwrap();
        let variables = read("env");
        let variables = variables
            .split_terminator('\0')
            .filter_map(|pair| pair.split_once('='));
        Task {
            variables: variables
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            arguments: read("arguments").lines().map(String::from).collect(),
        }
    };
    let again = fs::read_to_string(records.join("requeued")).ok();
    assert!(
        again.as_ref().is_none_or(|job| job.trim() == "4711"),
        "{again:?}"
    );
    (
        (0..tasks).map(task).collect(),
        output.status.code(),
        again.is_some(),
    )
}

#[test]
fn every_task_of_a_batch_file_finds_its_place() {
    let files = batch_files();
    let mut found = Vec::new();
    for file in &files {
        let options = options(file);
        let per_node: usize = options["ntasks-per-node"].parse().unwrap();
        let (tasks, code, _) = run(file, 0);
        assert_eq!(code, Some(0));
        for (number, task) in tasks.iter().enumerate() {
            let env = ClusterEnv::find(|name| task.variables.get(name).cloned()).unwrap();
            let env = env.expect("a task of several");
            assert_eq!((env.rank, env.world_size), (number, tasks.len()));
            assert_eq!(env.local_rank, Some(number % per_node));
            assert_eq!(env.node, Some(number / per_node));
            match env.launcher.has_mpi() {
                true => assert_eq!(env.master, None),
                false => {
                    let master = env.master.expect("a place to meet");
                    assert_eq!(
                        (&*master.to_string(), master.is_rank_zero),
                        ("node7:24711", true)
                    );
                    assert_eq!(task.variables["BURN_DIST_TOKEN"].len(), 64);
                }
            }
            // Ranks are divided among the processes, and a machine has those that communicate most.
            let mesh = task
                .arguments
                .iter()
                .position(|argument| argument == "--mesh")
                .expect("a mesh");
            let mesh: MeshShape = task.arguments[mesh + 1].parse().unwrap();
            assert_eq!(mesh.num_ranks() % tasks.len(), 0, "{mesh}");
            let last = mesh.axes().last().expect("an axis").size;
            assert_eq!(
                mesh.num_ranks() / (tasks.len() / per_node) % last,
                0,
                "{mesh}"
            );
            if number == 0 {
                found.push(env.launcher);
            }
        }
    }
    assert_eq!(found, [Launcher::Slurm { pmi: true }, Launcher::Torchrun]);
}

#[test]
fn what_was_asked_to_stop_runs_again_and_what_failed_does_not() {
    for file in &batch_files() {
        let options = options(file);
        for needed in ["time", "requeue", "open-mode"] {
            assert!(options.contains_key(needed), "no --{needed}");
        }
        assert!(
            options["signal"].starts_with("TERM@"),
            "{}",
            options["signal"]
        );
        for (code, again) in [(0, false), (143, true), (75, false), (1, false)] {
            let (_, ended, asked) = run(file, code);
            assert_eq!((ended, asked), (Some(i32::from(code)), again));
        }
    }
}
