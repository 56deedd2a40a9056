//! Picks the role and exits with its code.

fn main() {
    std::process::exit(ranklaunch::launch::main(std::env::args_os()));
}
