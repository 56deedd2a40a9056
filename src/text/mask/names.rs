//! Decides by a name whether its value is a secret.
//!
//! Takes the name of an option, a variable, a header or a key; gives a [`Secrecy`]. A name is
//! split into words (`HF_TOKEN` → hf, token; `apiKey` → api, key), and the lists below decide by
//! these words.

/// Secrecy of a value, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Secrecy {
    Open,
    /// Hidden unless the value is a plain number: `--tokens 4096`.
    UnlessNumber,
    Secret,
}

/// Whether a value with this name must not be shown.
pub(crate) fn is_secret_name(name: &str) -> bool {
    secrecy(name) != Secrecy::Open
}

/// Whether a name has a word of a secret, but also a word that makes the name open: `image_key`.
pub(super) fn is_known_open(name: &str) -> bool {
    let is_word = |word: &String| has("token key pass", word) || has(SECRET, word);
    let words = words(name);
    let is_tokens = words.first().is_some_and(|word| word == "tokens");
    secrecy(name) == Secrecy::Open && (is_tokens || words.iter().any(is_word))
}

pub(super) fn secrecy(name: &str) -> Secrecy {
    if has(KNOWN_OPEN, name) {
        return Secrecy::Open;
    }
    let words = words(name);
    let about = |last: &String| words.len() > 1 && has(ABOUT, last);
    if words.last().is_some_and(about) {
        return Secrecy::Open;
    }
    let is_switch = words.first().is_some_and(|word| has(SWITCH, word));
    let found = (0..words.len()).map(|at| of_word(&words, at));
    match found.max_by_key(|secrecy| *secrecy as u8).unwrap_or(Secrecy::Open) {
        Secrecy::Secret if is_switch => Secrecy::UnlessNumber,
        secrecy => secrecy,
    }
}

/// The secrecy by the word at a position, with its neighbours.
fn of_word(words: &[String], at: usize) -> Secrecy {
    let stripped =
        |word: &'_ String| word.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let word = words.get(at).map(stripped).unwrap_or_default();
    let before = at.checked_sub(1).and_then(|at| words.get(at)).map_or("", String::as_str);
    let after = words.get(at + 1).map_or("", String::as_str);
    let is_last = at + 1 == words.len();
    let secret_if = |secret: bool| if secret { Secrecy::Secret } else { Secrecy::Open };
    match word.as_str() {
        word if has(SECRET, word) => Secrecy::Secret,
        "token" => secret_if(
            has(CREDENTIAL, before) || !(has(TOKEN_BEFORE, before) || has(TOKEN_AFTER, after)),
        ),
        "tokens" if has(CREDENTIAL, before) => Secrecy::Secret,
        "tokens" if at == 0 && !has(TOKEN_AFTER, after) => Secrecy::UnlessNumber,
        "key" if has(CREDENTIAL, before) => Secrecy::Secret,
        "key" if after == "value" => {
            let of = words.get(at + 2).map_or("", String::as_str);
            secret_if(!has(KEY_VALUE_OF, of) && !has(KEY_BEFORE, before))
        }
        "key" => secret_if(!has(KEY_BEFORE, before) && !has(KEY_AFTER, after)),
        "keys" => secret_if(has(CREDENTIAL, before)),
        "pass" if is_last && !has(PASS_BEFORE, before) => Secrecy::UnlessNumber,
        "pwd" => Secrecy::Secret,
        "auth" if is_last => Secrecy::UnlessNumber,
        word => {
            let is_behind = |(last, behind): &(&str, &[&str])| {
                *last == word && (behind.is_empty() || behind.contains(&before))
            };
            let is_last = is_last || ["url", "uri"].contains(&after);
            let is_secret = is_last && SECRET_BEHIND.iter().any(is_behind);
            secret_if(is_secret || is_secret_word(word))
        }
    }
}

/// Words written without a break.
fn is_secret_word(word: &str) -> bool {
    // `passwordless` is the opposite.
    if word.ends_with("less") {
        return false;
    }
    let one = word.strip_suffix('s').unwrap_or(word);
    if SECRET_INSIDE.split(' ').any(|part| word.contains(part))
        || SECRET_AT_END.split(' ').any(|end| one.ends_with(end) || word.ends_with(end))
    {
        return true;
    }
    one.strip_suffix("token").is_some_and(|prefix| {
        !prefix.is_empty()
            && !has(TOKEN_GLUED, prefix)
            && !COUNTED.split(' ').any(|counted| prefix.starts_with(counted))
    })
}

/// The words of a name, in lower case. Splits at everything except letters and digits, at a capital after a small
/// letter, and before the last of several capitals if it begins a word (`HFToken`, but not `tokenIDs`).
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut was_small, mut was_capital) = (false, false);
    let mut rest = name.chars();
    while let Some(c) = rest.next() {
        let mut after = rest.clone().take_while(|c| c.is_lowercase());
        let begins_word =
            was_capital && after.next().is_some_and(|c| c != 's' || after.next().is_some());
        if !c.is_alphanumeric() || (c.is_uppercase() && (was_small || begins_word)) {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        (was_small, was_capital) = (c.is_lowercase(), c.is_uppercase());
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a bare word is the name of a secret whose value is the next word: `WANDB.API_KEY x`, `--set hf_token x`. A
/// word with a dash or a folder is something else. A word such as `key` is a name only if names are `expected`.
pub(super) fn is_secret_in_pair(word: &str, expected: bool) -> bool {
    let words = words(word);
    // `train_token.py` is a file.
    let last = words.iter().rposition(|one| !["url", "uri"].contains(&one.as_str()));
    let is_bare = |c: char| c.is_alphanumeric() || "_.".contains(c) || (expected && c == '-');
    let is_clear = || words.len() > 1 || !word.contains(char::is_lowercase);
    word.chars().all(is_bare)
        && word.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && is_secret_name(word)
        && last.is_some_and(|last| of_word(&words, last) != Secrecy::Open)
        && (expected || is_clear())
}

/// Whether options of this name are followed by names and values: `--opts NAME x NAME x`.
pub(super) fn takes_pairs(option: &str) -> bool {
    words(option).last().is_some_and(|last| has(PAIRS_FOLLOW, last))
}

/// Whether this is a valid name of an option, a variable or a configuration key.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-_.+/:@~".contains(c))
}

/// Whether a word is the name of a variable: `HF_TOKEN`.
pub(super) fn is_variable(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// Whether the value cannot be a secret: empty, a truth value, or the name of a variable.
pub(super) fn holds_nothing(value: &str) -> bool {
    let value = value.trim();
    let reference = value.strip_prefix('$').map(|name| {
        let pair = |open, close| name.strip_prefix(open).and_then(|n| n.strip_suffix(close));
        pair('{', '}').or_else(|| pair('(', ')')).unwrap_or(name)
    });
    let is_variable = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    value.is_empty()
        || ["true", "false", "none", "null"].iter().any(|word| value.eq_ignore_ascii_case(word))
        || reference.is_some_and(is_variable)
}

/// Whether the value under this name must be hidden.
pub(super) fn hides(name: &str, value: &str) -> bool {
    let is_number = || value.trim().parse::<f64>().is_ok();
    match secrecy(name) {
        Secrecy::Open => false,
        _ if holds_nothing(value) => false,
        Secrecy::UnlessNumber => !is_number(),
        Secrecy::Secret => true,
    }
}

/// Whether one of these words, which are separated by blanks, is this one.
pub(super) fn has(words: &str, word: &str) -> bool {
    words.split(' ').any(|one| one == word)
}

/// Words that make a name secret at any position.
const SECRET: &str = "\
    secret secrets password passwords passwd passphrase passcode credential credentials creds \
    authorization cookie cookies jwt bearer netrc";

/// Words that make a name secret inside a word without a break: `PGPASSWORD`, `clientsecret`,
/// `HFAPIKEY`.
const SECRET_INSIDE: &str = "password passwd passphrase credential";
const SECRET_AT_END: &str = "\
    secret apikey accesskey secretkey privatekey privkey authkey accountkey signingkey \
    encryptionkey servicekey clientkey storagekey sharedkey licensekey deploykey sshkey wandbkey \
    openaikey hfkey masterkey passkey blobkey sshpass dbpass userpass s3sk connectionstring";

/// Last words of names that are secret after one of the listed words. An empty list means after any
/// word.
const SECRET_BEHIND: &[(&str, &[&str])] = &[
    // The secret key beside an access key: `oss_sk`.
    ("sk", &[]),
    ("hmac", &[]),
    // One-time passwords, pre-shared keys, the words of a wallet.
    ("otp", &[]),
    ("totp", &[]),
    ("psk", &[]),
    ("mnemonic", &[]),
    ("phrase", &["seed", "recovery"]),
    ("code", &["mfa", "otp", "totp", "2fa"]),
    // Azure's signature for shared access.
    ("sas", &[]),
    // A personal access token.
    ("pat", &["", "github", "gitlab", "gh", "git", "azure"]),
    ("pat", &["ado", "devops", "databricks", "user", "ext"]),
    ("string", &["connection", "conn"]),
    ("str", &["connection", "conn"]),
    ("dsn", &["sentry"]),
    // Anyone who knows the address may post.
    ("webhook", &[]),
];

/// Last words of options that are followed by names and values as separate words.
const PAIRS_FOLLOW: &str = "\
    set env opt opts option options override overrides cfg config conf var vars variable define kv \
    kwargs param params string";

/// Last words of names whose value is the place or a property of a secret, not the secret.
const ABOUT: &str = "\
    file files path paths dir dirs directory folder filename name names env var variable length \
    len type types ttl expiry timeout policy manager store enabled required provider backend \
    volume mount stdin less";

/// Words before `key` and `token` that mean a credential, even in the plural.
const CREDENTIAL: &str = "\
    api access auth secret private bearer refresh session security user service account client app \
    bot deploy signing encryption ssh hf huggingface hub wandb openai anthropic github gitlab gh \
    aws azure gcp ngc nvidia kaggle oauth id web registry docker";

/// Words before and after `token` that mean a token of a model.
const TOKEN_BEFORE: &str = "\
    pad eos bos mask cls sep unk special num max min new image img video text audio speech vision \
    visual latent query per next first last prev start end begin stop total avg mean sum n add \
    drop keep extra additional class register learnable prompt completion input output decoder \
    encoder forced suppress think thinking tool distill prefix suffix soft hard virtual context \
    ctx target source src tgt word sub multi patch sink motion ignore trigger placeholder global";
const TOKEN_AFTER: &str = "\
    id ids dim dims size count counts counter frame frames padding heads embedding embeddings \
    embed emb embedder points limit limits budget level wise idx index indices position positions \
    pos drop dropout merge merging prune pruning keep ratio reduction replace replacement num \
    number shift mix mixing mixer bucket buckets classifier classification loss losses accuracy \
    acc per rate throughput batch chunk window stride mask masks logits prob probs weight weights \
    norm usage shape lens lengths refiner spans stream url uri endpoint";

/// Words before and after `key` that mean a key of another kind.
const KEY_BEFORE: &str = "\
    pad num max min query image img video text audio caption label labels prompt data dataset \
    column feature features input inputs output outputs target sort group cache dict state primary \
    foreign index partition shard order metric monitor loss reward latent cond condition attention \
    attn qk tensor weight weights ckpt checkpoint config json yaml public pub lookup hash batch \
    sample field n all per mask answer question response messages extra ignore missing unexpected \
    file merge hot arrow short cut shortcut";
const KEY_AFTER: &str = "\
    frame frames dim dims size count padding heads head ids embedding points point mask masks bias \
    proj projection layer layers norm state states cache func fn map mapping mappings binding \
    bindings press length idx index metric metrics word words board error values";
/// Words after `key_value`: sizes of an attention.
const KEY_VALUE_OF: &str = "head heads dim dims size proj cache states pairs length";

/// Words before `pass` that mean a pass over data.
const PASS_BEFORE: &str = "\
    forward backward single one two three multi first second third num all by per eval warmup low \
    high band must did";
/// Words before `token` without a break: `padtoken`, `numtokens`.
const TOKEN_GLUED: &str = "\
    pad eos bos mask cls sep unk sub non un de multi img image video text audio inter cross word \
    char byte next any all pre post";
const COUNTED: &str = "max min num total avg special";
/// First words of a switch, which has no value, or true or false.
const SWITCH: &str = "use no has is enable disable skip with without require allow";

/// Names that look like names of secrets but are not.
const KNOWN_OPEN: &str = "\
    PWD OLDPWD GOOGLE_APPLICATION_CREDENTIALS SSH_AUTH_SOCK GPG_KEY";
