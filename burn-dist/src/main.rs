//! The program `burn-dist`: a launcher, and a doctor for runs that failed.

fn main() -> std::process::ExitCode {
    burn_dist_launch::cli::main()
}
