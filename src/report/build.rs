//! Deflates the texts of `explain ID` and `help TOPIC`, and the page of a run.

fn main() -> std::io::Result<()> {
    embed::embed_folders(&[
        ("explanations.zz", "findings/text", &["toml"]),
        ("page.zz", "page", &["html", "css", "js"]),
        ("topics.zz", "topics", &["txt"]),
    ])
}
