//! packaging/schemas/profile.schema.json and site.schema.json are what the table of settings and the sections accept.
//!
//! `make docs` (RANKLAUNCH_WRITE_DOCS=1) writes it; without it the file is compared.

use std::collections::BTreeMap;

use harness::reference;
use serde_json::{Map, Value, json};

use super::super::layer::FileLayer;
use super::super::table::{Allowed, Toml};
use super::*;
use crate::Reaction;
use crate::contract;
use verdict::Id;

fn names(names: &[&str]) -> Value {
    json!({ "enum": names })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn texts() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

fn text_or_number() -> Value {
    json!({ "type": ["string", "integer"] })
}

/// One text, or one for each language.
fn both() -> Value {
    let lang = json!({ "type": "string", "minLength": 1 });
    let of_each = json!({
        "type": "object", "additionalProperties": false, "minProperties": 1,
        "properties": { "en": lang, "zh": lang },
    });
    json!({ "anyOf": [lang, of_each] })
}

fn section(keys: impl IntoIterator<Item = (String, Value)>, required: &[&str]) -> Value {
    let keys: Map<String, Value> = keys.into_iter().collect();
    json!({
        "type": "object", "additionalProperties": false, "properties": keys, "required": required,
    })
}

fn setting(row: &SettingRow) -> (String, Value) {
    let mut value = match row.toml {
        Toml::Text => text(),
        Toml::Number => json!({ "type": "integer", "minimum": 0 }),
        Toml::TextOrNumber => text_or_number(),
        Toml::Boolean => json!({ "type": "boolean" }),
        Toml::List => texts(),
    };
    match (row.toml, row.allowed) {
        (Toml::Boolean, _) => {}
        (_, Allowed::OneOf(names)) => value["enum"] = json!(names),
        (_, Allowed::Words(..)) => {
            value["description"] = Value::from(row.allowed.text().get(Lang::En));
            value["examples"] = json!([row.example]);
        }
    }
    (row.key(), value)
}

/// The rows of a table of the profile and its other keys.
fn rows(table: &str, others: &[(&str, Value)]) -> Value {
    let others = others.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    section(profile::rows_of(table).map(setting).chain(others), &[])
}

/// `"shm.size" = "fail"`, or without quotes, as TOML reads it, `shm = { size = "fail" }`.
fn severities(ids: &[String]) -> Value {
    let severity = json!({ "enum": ["fail", "warn", "off"] });
    let mut keys: BTreeMap<String, Value> =
        ids.iter().map(|id| (id.clone(), severity.clone())).collect();
    let tables: std::collections::BTreeSet<&str> =
        ids.iter().filter_map(|id| id.split_once('.').map(|(table, _)| table)).collect();
    for table in tables {
        let below: Vec<String> = ids
            .iter()
            .filter_map(|id| id.strip_prefix(table)?.strip_prefix('.').map(str::to_owned))
            .collect();
        let below = severities(&below);
        let value = match keys.remove(table) {
            Some(itself) => json!({ "anyOf": [itself, below] }),
            None => below,
        };
        keys.insert(table.to_owned(), value);
    }
    section(keys, &[])
}

fn claim(field: contract::Field) -> (String, Value) {
    let readings: Vec<String> =
        contract::readings_of(field).iter().map(platform::spelled).collect();
    let parts = [
        ("variable".to_owned(), text()),
        ("reading".to_owned(), json!({ "enum": readings })),
        ("beside".to_owned(), text()),
    ];
    let one = json!({ "anyOf": [text(), section(parts, &["variable"])] });
    (platform::key(field), json!({ "anyOf": [one, { "type": "array", "items": one }] }))
}

fn of_diagnose(key: &&str) -> (String, Value) {
    let value = match *key {
        "id" => text(),
        "cause" | "remedy" => both(),
        "role" => names(diagnose_rows::ROLES),
        "domain" => names(diagnose_rows::DOMAINS),
        "owner" => names(diagnose_rows::OWNERS),
        "retry" => names(diagnose_rows::RETRIES),
        "stream" => names(diagnose_rows::STREAMS),
        "weak" | "first_only" => json!({ "type": "boolean" }),
        _ => texts(),
    };
    ((*key).to_owned(), value)
}

fn of_watch(key: &&str) -> (String, Value) {
    let value = match *key {
        "stream" => names(watch::STREAMS),
        "on" => names(Reaction::NAMES),
        "finite" => json!({ "type": "boolean" }),
        "min" | "max" => json!({ "type": "number" }),
        "text" | "hint" => both(),
        "id" | "line" => text(),
        _ => text_or_number(),
    };
    ((*key).to_owned(), value)
}

fn of_job(key: &&'static str) -> (&'static str, Value) {
    let value = match *key {
        "script" | "module" => text(),
        "args_if" => {
            let keys = [("when".to_owned(), text()), ("args".to_owned(), texts())];
            json!({ "type": "array", "items": section(keys, &["when", "args"]) })
        }
        _ => texts(),
    };
    (*key, value)
}

fn of_section(name: &str) -> Value {
    let list = |of: Value| json!({ "type": "array", "items": of });
    match name {
        "job" => rows("job", &profile::JOB_KEYS.iter().map(of_job).collect::<Vec<_>>()),
        "layout" => {
            let counts = json!({
                "type": "object", "additionalProperties": { "type": "integer", "minimum": 1 },
            });
            let keys = [
                ("argument".to_owned(), text()),
                ("default".to_owned(), text()),
                ("values".to_owned(), counts),
            ];
            let (_, number) = setting(row("heads").expect("the row"));
            let heads = json!({ "anyOf": [number, section(keys, &["argument", "values"])] });
            rows("layout", &[("heads", heads)])
        }
        "platform" => {
            let proofs =
                json!({ "type": "array", "items": { "anyOf": [text(), texts()] }, "minItems": 1 });
            let port = json!({ "type": "integer", "minimum": 1, "maximum": 65535 });
            let own = [("name", text()), ("proofs", proofs), ("default_port", port)];
            assert_eq!(own.clone().map(|(key, _)| key), platform::KEYS);
            let own = own.into_iter().map(|(key, value)| (key.to_owned(), value));
            section(own.chain(contract::fields().map(claim)), &["name", "proofs"])
        }
        "select" => {
            let gpus = json!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "const": "*" }] });
            let values = json!({ "type": "object", "additionalProperties": text_or_number() });
            let keys = [("total_gpus".to_owned(), gpus), ("values".to_owned(), values)];
            list(section(keys, &["total_gpus", "values"]))
        }
        "env" => json!({ "type": "object", "additionalProperties": text_or_number() }),
        "severity" => severities(&Id::checks().map(|id| id.to_string()).collect::<Vec<_>>()),
        "exit" => {
            let code = json!({ "type": "integer", "minimum": 0, "maximum": 255 });
            let codes = Verdict::ALL.iter().map(|verdict| verdict.code().to_string());
            section(codes.map(|own| (own, code.clone())), &[])
        }
        "diagnose" => {
            list(section(diagnose_rows::KEYS.iter().map(of_diagnose), &["id", "cause", "remedy"]))
        }
        "watch" => list(section(watch::KEYS.iter().map(of_watch), &["id"])),
        table => rows(table, &[]),
    }
}

/// The files with a schema, and what it says of them.
const FILES: [(FileLayer, &str, &str); 2] = [
    (
        FileLayer::Profile,
        "profile",
        "A TOML file for --profile. config/reference.toml says what each key means; `ranklaunch profile check FILE` also finds what no schema can. Written by `make docs`.",
    ),
    (
        FileLayer::Site,
        "site",
        "The platform's file below every profile, /etc/ranklaunch/site.toml. docs/guide/profiles.md says how the layers merge. Written by `make docs`.",
    ),
];

fn schema(layer: FileLayer) -> Value {
    let of_layer = |name: &&str| {
        let mut section = of_section(name);
        if let (FileLayer::Site, "job") = (layer, *name) {
            let keys = section["properties"].as_object_mut().expect("keys");
            keys.retain(|key, _| !profile::OF_PROGRAM.contains(&key.as_str()));
        }
        ((*name).to_owned(), section)
    };
    let sections = profile::SECTIONS.iter().map(of_layer);
    let top = profile::TOP.iter().filter(|(_, only)| only.is_none_or(|only| only == layer));
    let top = top.map(|(key, _)| {
        let value = match *key {
            profile::MIN_VERSION => json!({ "type": "string", "pattern": "^\\d+(\\.\\d+){0,2}" }),
            profile::LOCKED => texts(),
            _ => text(),
        };
        ((*key).to_owned(), value)
    });
    let (_, name, description) = FILES.iter().find(|(of, ..)| *of == layer).expect("a file");
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": format!("urn:ranklaunch:schema:1:{name}"),
        "title": format!("{name} of ranklaunch"),
        "description": description,
    });
    let Value::Object(body) = section(top.chain(sections), &[]) else {
        panic!("a section is an object")
    };
    schema.as_object_mut().expect("an object").extend(body);
    schema
}

#[test]
fn the_profile_schema_is_written_from_the_table() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/schemas");
    for (layer, name, _) in FILES {
        let file = folder.join(format!("{name}.schema.json"));
        let written = format!("{:#}\n", schema(layer));
        if std::env::var_os("RANKLAUNCH_WRITE_DOCS").is_some() {
            std::fs::write(&file, &written).expect("written");
        }
        let there = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(there == written, "{name} differs from the table of settings: make docs");
    }
}

/// The schema of the platform's file has its own keys and not those of a job.
#[test]
fn site_schema_agrees_with_the_program() {
    let validator = jsonschema::validator_for(&schema(FileLayer::Site)).expect("a schema");
    for (text, is_sound) in [
        (
            "min_version = \"0.1\"\nlocked = [\"log_keep\", \"env.A\"]\n[logs]\nlog_keep = 20\n",
            true,
        ),
        ("[platform]\nname = \"acme\"\nproofs = [\"A\"]\nnnodes = \"N\"\n", true),
        ("extends = \"wan22\"\n", false),
        ("[job]\nscript = \"a.py\"\n", false),
        ("[job]\nargs = [\"a\"]\n", false),
        ("locked = \"log_keep\"\n", false),
        ("min_version = 1\n", false),
        ("[logs]\nlog_kep = 20\n", false),
    ] {
        let document: Value = toml::from_str(text).expect("TOML");
        assert_eq!(validator.is_valid(&document), is_sound, "{text}");
        assert_eq!(Profile::read(FileLayer::Site, "", text).is_ok(), is_sound, "{text}");
    }
}

/// The schema also refuses everything that the program refuses, as far as types and names go.
#[test]
fn profile_schema_agrees_with_the_program() {
    let validator = jsonschema::validator_for(&schema(FileLayer::Profile)).expect("a schema");
    let valid = |text: &str| {
        let document: Value = toml::from_str(text).expect("TOML");
        validator.is_valid(&document)
    };
    let reference = reference::in_force();
    let mut sound = vec![reference.as_str()];
    sound.extend(EMBEDDED.iter().map(|(_, text)| *text));
    sound.push("[severity]\nshm.size = \"warn\"\ngpu = { count = \"off\" }\n");
    sound.push("[launch]\ngrace = 30\n[env]\nA = 1\n");
    for text in sound {
        assert!(read_profile(text).is_ok() && valid(text), "{text}");
    }
    for text in [
        "[job]\nscrpt = \"a.py\"\n",
        "[job]\nnnodes = \"2\"\n",
        "[job]\nengine = \"mpi\"\n",
        "[launch]\nnnodes = 2\n",
        "[launch]\nretry_on = \"cuda_oom\"\n",
        "[logs]\nverbose = \"yes\"\n",
        "[layout]\nheads = \"40\"\n",
        "[layout.heads]\nargument = \"--task\"\nvalues = { a = 0 }\n",
        "[[select]]\ntotal_gpus = \"some\"\nvalues = { a = 1 }\n",
        "[severity]\n\"shm.size\" = \"maybe\"\n",
        "[severity]\nshm.sice = \"warn\"\n",
        "[exit]\n63 = 1\n",
        "[exit]\n64 = 256\n",
        "[[diagnose]]\nid = \"x\"\ncause = \"c\"\nremedy = \"r\"\nfragments = [\"f\"]\nrole = \"victim\"\n",
        "[[watch]]\nid = \"x\"\nevery = \"5m\"\nline = \"l\"\nstrem = \"out\"\n",
        "[platform]\nname = \"acme\"\nproofs = [\"A\"]\nnnodes = { variable = \"N\", reading = \"guess\" }\n",
        "[unknown]\n",
        "locked = [\"log_keep\"]\n",
        "engine = \"torchrun\"\n",
    ] {
        assert!(read_profile(text).is_err(), "the program accepts {text}");
        assert!(!valid(text), "the schema accepts {text}");
    }
}
