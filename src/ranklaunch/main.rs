//! Runs [`ranklaunch`] and exits with its code.

fn main() {
    std::process::exit(ranklaunch::main(std::env::args_os()));
}
