//! Deflates what the warmed interpreter and the ranks run.

fn main() -> std::io::Result<()> {
    embed::embed_folders(&[("warm.zz", "warm", &["py"]), ("inject.zz", "inject", &["py"])])
}
