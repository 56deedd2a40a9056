//! Names of secrets hide their values in every spelling and form; no other name does.

use super::*;

/// The parts of names that hide their values.
const SECRETS: &[&[&str]] = &[
    &["hf", "token"],
    &["hub", "token"],
    &["api", "key"],
    &["wandb", "api", "key"],
    &["aws", "secret", "access", "key"],
    &["aws", "session", "token"],
    &["db", "password"],
    &["db", "pass"],
    &["mysql", "pwd"],
    &["ssh", "private", "key"],
    &["client", "secret"],
    &["auth", "token"],
    &["access", "token"],
    &["user", "credentials"],
    &["key", "passphrase"],
    &["github", "pat"],
    &["session", "cookie"],
    &["my", "jwt"],
    &["my", "bearer"],
    &["my", "netrc"],
    &["proxy", "authorization"],
    &["registry", "auth"],
    &["oss", "sk"],
    &["git", "pat"],
    &["blob", "sas"],
    &["payload", "hmac"],
    &["azure", "connection", "string"],
    &["sentry", "dsn"],
    &["slack", "webhook"],
    &["discord", "webhook", "url"],
    &["sk"],
    &["sas"],
    &["hmac"],
    &["sshpass"],
    &["passkey"],
    &["blobkey"],
    &["token"],
    &["secret"],
    &["password"],
    &["pass"],
    &["bearer"],
    &["netrc"],
];

/// The parts of names that look similar and hide nothing.
const OPEN: &[&[&str]] = &[
    &["tokenizer"],
    &["tokenizer", "path"],
    &["max", "tokens"],
    &["max", "new", "tokens"],
    &["num", "tokens"],
    &["pad", "token", "id"],
    &["eos", "token"],
    &["token", "ids"],
    &["tokens", "per", "batch"],
    &["keyboard"],
    &["monkey"],
    &["passes"],
    &["num", "passes"],
    &["forward", "pass"],
    &["secretary"],
    &["key", "frames"],
    &["keypoints"],
    &["key", "dim"],
    &["image", "key"],
    &["public", "key"],
    &["num", "key", "value", "heads"],
    &["author"],
    &["authors"],
    &["keyword"],
    &["hf", "token", "path"],
    &["secret", "file"],
    &["password", "length"],
    &["bypass"],
    &["pattern"],
    &["patience"],
    &["path"],
    &["patch"],
    &["task"],
    &["mask"],
    &["disk"],
    &["risk"],
    &["desk"],
    &["sketch"],
    &["sk", "learn"],
    &["skip"],
    &["sasrec"],
    &["sas", "rec", "layers"],
    &["hmac", "algorithm"],
    &["compat"],
    &["model", "name"],
    &["query", "string"],
    &["dsn"],
    &["webhook", "port"],
    &["connection", "timeout"],
    &["compass"],
];

fn capitalized(part: &str) -> String {
    let (first, rest) = part.split_at(1);
    first.to_uppercase() + rest
}

/// A part that is written in capitals in names of several words.
fn acronym(part: &str) -> String {
    match part {
        "hf" | "api" | "aws" | "db" | "ssh" | "id" | "ids" | "jwt" | "pat" | "eos" | "pad" => {
            part.to_uppercase()
        }
        _ => capitalized(part),
    }
}

/// One name in each spelling.
fn spellings(parts: &[&str]) -> Vec<String> {
    let each = |word: fn(&str) -> String, between: &str| {
        parts.iter().map(|part| word(part)).collect::<Vec<_>>().join(between)
    };
    let first_small = |name: String| {
        let first = parts.first().copied().unwrap_or_default();
        format!("{first}{}", name.get(first.len()..).unwrap_or_default())
    };
    let same: fn(&str) -> String = str::to_owned;
    let capitals: fn(&str) -> String = str::to_uppercase;
    let mut spellings = vec![
        each(same, "_"),
        each(same, "-"),
        each(same, "."),
        each(capitals, "_"),
        each(capitals, "-"),
        each(capitals, "."),
        each(capitalized, ""),
        each(capitalized, "_"),
        each(capitalized, "-"),
        first_small(each(capitalized, "")),
        each(acronym, ""),
        each(acronym, "-"),
        first_small(each(acronym, "")),
    ];
    spellings.sort();
    spellings.dedup();
    spellings
}

/// Arguments that give the value `{v}` to the name `{n}`.
#[rustfmt::skip]
const ARGUMENTS: &[&[&str]] = &[
    &["x", "--{n}", "{v}", "--lr", "1"],
    &["x", "--{n}={v}"],
    &["x", "-{n}", "{v}"],
    &["x", "-{n}={v}"],
    &["x", "--lr", "1", "--{n}", "{v}"],
    &["x", "{n}={v}"],
    &["x", "+{n}={v}"],
    &["x", "++{n}={v}"],
    &["x", "++trainer.logger.{n}={v}"],
    &["x", "model={{n}:{v},b:1}"],
    &["x", "-e", "{n}={v}"],
    &["x", "-e{n}={v}"],
    &["x", "--env", "{n}={v}"],
    &["x", "--env={n}={v}"],
    &["x", "--export=ALL,{n}={v},B=1"],
    &["env", "{n}={v}", "x"],
    &["env", "-S", "{n}={v} x"],
    &["sh", "-c", "export {n}={v}; x"],
    &["sh", "-c", "{n}={v} x"],
    &["bash", "-lc", "cd /x && x --{n} {v} --lr 1"],
    &["bash", "-lc", "x --{n}='{v}'"],
    &["bash", "-lc", "x --a=1 \\\n  --{n} \"{v}\""],
    &["ssh", "h", "x --{n} {v}"],
    &["x", "--extra_args", "--{n} {v} --lr 1"],
    &["python", "-c", "login({n}='{v}')"],
    &["python", "-c", "os.environ['{n}'] = '{v}'"],
    &["x", "{\"{n}\": \"{v}\"}"],
    &["x", "--config={\"a\": [{\"{n}\": \"{v}\"}]}"],
    &["x", "{'{n}': '{v}'}"],
    &["x", "{\"name\": \"{n}\", \"value\": \"{v}\"}"],
    &["x", "[\"--{n}\", \"{v}\"]"],
    &["x", "https://h/x?a=1&{n}={v}&b=2"],
    &["curl", "-H", "{n}: {v}"],
    &["curl", "--header={n}: {v}"],
    &["curl", "-H{n}: {v}"],
    &["x", "--conn", "Server=x;{n}={v};"],
    &["x", "?a=1&{n}={v}"],
    &["x", "a=1&{n}={v}&b=2"],
    // Blanks around `=`.
    &["x", "--cfg", "{n} = \"{v}\""],
    &["x", "--cfg", "{n} = {v}"],
    &["x", "--cfg={n} = '{v}'"],
    &["x", "--{n}", "=", "{v}"],
    &["x", "--{n}=", "{v}"],
    &["sh", "-c", "echo '{n} = {v}' > c.toml"],
    &["python", "-c", "{n} = '{v}'"],
    // Names and values as words of their own.
    &["x", "--opts", "{n}", "{v}", "LR", "1"],
    &["x", "--opts", "LR", "1", "{n}", "{v}"],
    &["x", "--env", "{n}", "{v}"],
    &["x", "--set", "{n}", "{v}"],
    &["x", "--set", "{n}", "=", "{v}"],
    &["bash", "-c", "x --cfg-options {n} '{v}'"],
    &["x", "[\"--opts\", \"{n}\", \"{v}\"]"],
];

/// Arguments in which a word counts as a name only if it cannot be an ordinary word.
const PAIRS: &[&[&str]] = &[
    &["x", "{n}", "{v}"],
    &["x", "LR", "1", "{n}", "{v}", "B", "2"],
    &["x", "{n}", "=", "{v}"],
    &["bash", "-c", "aws configure set {n} {v}"],
];

/// Whether a bare word may be the name in [`PAIRS`]; a word with a dash is a branch or an object.
fn is_for_pairs(name: &str) -> bool {
    let is_long = name.contains(['_', '.']) || name.chars().skip(1).any(char::is_uppercase);
    is_long && !name.contains('-')
}

/// Files.
const FILES: &[&str] = &[
    "{n}={v}\n",
    "A=1\nexport {n}={v}\n",
    "lr: 1\n{n}: {v}\n",
    "a:\n  - {n}: \"{v}\"\n",
    "{n} = \"{v}\"\n",
    "{\"lr\": 1, \"{n}\": \"{v}\"}",
];

/// Values of a variable whose own name says nothing.
const VALUES: &[&str] =
    &["{n}={v}", "--{n} {v}", "x.py --{n}={v}", "{\"{n}\": \"{v}\"}", "cd /x&&{n}={v} python x.py"];

const VALUE: &str = "Zq7xT8vK3m";

fn filled(form: &str, name: &str) -> String {
    form.replace("{n}", name).replace("{v}", VALUE)
}

/// Each form with each spelling of a name, before and after masking.
fn shown(names: &[&[&str]]) -> Vec<(String, String)> {
    let mut shown = Vec::new();
    for name in names.iter().flat_map(|parts| spellings(parts)) {
        let pairs = PAIRS.iter().filter(|_| is_for_pairs(&name));
        for form in ARGUMENTS.iter().chain(pairs) {
            let args: Vec<OsString> = form.iter().map(|arg| filled(arg, &name).into()).collect();
            let text = |args: &[OsString]| args.join(" ".as_ref()).to_string_lossy().into_owned();
            shown.push((text(&args), text(&mask_args(&args))));
        }
        for form in FILES {
            shown.push((filled(form, &name), mask_file(&filled(form, &name))));
        }
        for form in VALUES {
            let value = filled(form, &name);
            let masked = mask_value("X", value.as_ref()).to_string_lossy().into_owned();
            shown.push((value, masked));
        }
        let variable = format!("{name}={VALUE}");
        let masked = mask_value(&name, VALUE.as_ref()).to_string_lossy().into_owned();
        shown.push((variable, format!("{name}={masked}")));
        let mut document = serde_json::json!({
            "env": [{ "name": name, "value": VALUE }],
            "argv": format!("x --{name}={VALUE}"),
            name.clone(): VALUE,
        });
        let before = document.to_string();
        mask_json(&mut document);
        shown.push((before, document.to_string()));
    }
    shown
}

#[test]
fn secrets_are_hidden_in_every_spelling_and_form() {
    let shown = shown(SECRETS);
    let clear: Vec<_> = shown.iter().filter(|(_, shown)| shown.contains(VALUE)).collect();
    assert!(clear.is_empty(), "{} of {} shown: {clear:#?}", clear.len(), shown.len());
}

#[test]
fn other_names_stay_readable_in_every_spelling_and_form() {
    let shown = shown(OPEN);
    let changed: Vec<_> = shown.iter().filter(|(given, shown)| shown != given).collect();
    assert!(changed.is_empty(), "{} of {} hidden: {changed:#?}", changed.len(), shown.len());
}

#[test]
fn users_in_addresses_are_hidden() {
    for scheme in ["http", "https", "redis", "postgres", "s3", "git+https", "amqp"] {
        for user in [format!("u:{VALUE}"), format!(":{VALUE}"), VALUE.to_owned()] {
            let url = format!("{scheme}://{user}@h:1/x");
            for arg in [url.clone(), format!("--url={url}"), format!("A={url},B=1")] {
                let shown = mask_args(&["x".into(), arg.clone().into()]);
                assert!(!shown.iter().any(|arg| arg.to_string_lossy().contains(VALUE)), "{arg}");
            }
        }
    }
}

#[test]
fn option_after_secret_option_is_read_as_both() {
    for [first, second] in
        [["--PASS", "--PASSWORD"], ["--token", "-pass"], ["--hf_token", "--API-KEY"]]
    {
        let args = ["x", first, second, VALUE].map(OsString::from);
        let shown = mask_args(&args);
        assert_eq!(shown.last().map(OsString::as_os_str), Some(MASK.as_ref()), "{first} {second}");
    }
}
