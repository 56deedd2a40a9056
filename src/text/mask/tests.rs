use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;

mod forms;

/// Names that hide their values.
const SECRET_NAMES: &[&str] = &[
    "--otp",
    "VPN_TOTP",
    "wifi-psk",
    "--mfa-code",
    "seedPhrase",
    "wallet_mnemonic",
    "--webhook",
    "ALERT_WEBHOOK_URL",
    "HF_TOKEN",
    "--token",
    "--api-key",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SESSION_TOKEN",
    "db.password",
    "apiKey",
    "hfToken",
    "PASSWORD",
    "API_KEY_2",
    "HUGGING_FACE_HUB_TOKEN",
    "OPENAI_APIKEY",
    "TOKEN1",
    "RANKLAUNCH_SECRET",
    "HF_TOKEN_RO",
    "PGPASSWORD",
    "MYSQL_PWD",
    "DB_PASS",
    "--pass",
    "--pwd",
    "--hftoken",
    "CLIENTSECRET",
    "--userpassword",
    "--privatekey",
    "OPENAI_API_KEYS",
    "API_KEYS",
    "--tokens",
    "--tokens_list",
    "API_KEY_VALUE",
    "TOKEN_VALUE",
    "--secret_id",
    "--wandb_key",
    "KAGGLE_KEY",
    "GITHUB_PAT",
    "--pat",
    "--jwt",
    "--cookie",
    "--credentials",
    "--auth",
    "Authorization",
    "X-Api-Key",
    "id_token",
    "account_key",
    "private_key",
    "LICENSE_KEY",
    "secret_key_base",
    "redis.password",
];

/// Names that hide nothing.
const OPEN_NAMES: &[&str] = &[
    "--code",
    "exit_code",
    "trigger_phrase",
    "--dropout",
    "--tokenizer",
    "tokenizer_path",
    "--max_tokens",
    "max_new_tokens",
    "num_tokens",
    "token_ids",
    "pad_token_id",
    "eos_token",
    "--num_keys",
    "monkey",
    "turkey",
    "keyboard",
    "keyframe",
    "--key-frames",
    "key_dim",
    "num_key_value_heads",
    "key_value_heads",
    "author",
    "authors",
    "--secretary",
    "PYTHONPATH",
    "PWD",
    "OLDPWD",
    "max_token",
    "tokens_per_second",
    "train_tokens",
    "image_token_index",
    "--image_key",
    "--caption_key",
    "--data_file_keys",
    "metric_key",
    "state_dict_keys",
    "primary_key",
    "public_key",
    "passthrough",
    "--num_passes",
    "forward_pass",
    "bypass",
    "compass",
    "passwordless",
    "HF_TOKEN_PATH",
    "RANKLAUNCH_SECRET_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "SECRET_NAME",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "SSH_AUTH_SOCK",
    "tokenize",
    "detokenize",
    "word_tokens",
    "patch_size",
    "signature_columns",
    "",
];

#[test]
fn names_are_judged_by_their_words() {
    let shown: Vec<_> = SECRET_NAMES.iter().filter(|name| !is_secret_name(name)).collect();
    assert!(shown.is_empty(), "must be hidden: {shown:?}");
    let hidden: Vec<_> = OPEN_NAMES.iter().filter(|name| is_secret_name(name)).collect();
    assert!(hidden.is_empty(), "must be shown: {hidden:?}");
}

/// Arguments that hold the secret `S3CR3T`, as they are shown.
#[rustfmt::skip]
const HIDDEN: &[(&[&str], &[&str])] = &[
    // Options.
    (&["x", "--token", "S3CR3T", "--lr", "1"], &["x", "--token", "***", "--lr", "1"]),
    (&["x", "-token", "S3CR3T"], &["x", "-token", "***"]),
    (&["x", "--api-key=S3CR3T"], &["x", "--api-key=***"]),
    (&["x", "--hf_token", "S3CR3T", "train"], &["x", "--hf_token", "***", "train"]),
    (&["x", "--hftoken=S3CR3T"], &["x", "--hftoken=***"]),
    (&["x", "--token", "a S3CR3T c"], &["x", "--token", "***"]),
    (&["x", "--token", "-S3CR3T"], &["x", "--token", "***"]),
    (&["x", "--hf_token", "--S3CR3T"], &["x", "--hf_token", "***"]),
    (&["x", "--token", "\nS3CR3T"], &["x", "--token", "***"]),
    (&["x", "--hf_token=a\nS3CR3T"], &["x", "--hf_token=***"]),
    (&["x", "--private_key", "-----BEGIN KEY-----\nS3CR3T\n-----END KEY-----"], &["x", "--private_key", "***"]),
    (&["x", "--private_key", "-----BEGIN KEY\nS3CR3T"], &["x", "--private_key", "***"]),
    (&["x", "--key", "-----BEGIN KEY-----\nS3CR3T"], &["x", "--key", "***"]),
    (&["x", "--api_keys", "S3CR3T", "S3CR3T2", "--lr", "1"], &["x", "--api_keys", "***", "***", "--lr", "1"]),
    (&["x", "--tokens", "S3CR3T"], &["x", "--tokens", "***"]),
    (&["x", "--password", "12345"], &["x", "--password", "***"]),
    (&["x", "--use_auth_token", "hf_S3CR3T"], &["x", "--use_auth_token", "***"]),
    (&["x", "--env=HF_TOKEN=S3CR3T"], &["x", "--env=HF_TOKEN=***"]),
    (&["x", "-eHF_TOKEN=S3CR3T"], &["x", "-eHF_TOKEN=***"]),
    (&["x", "-e", "HF_TOKEN=S3CR3T"], &["x", "-e", "HF_TOKEN=***"]),
    (&["x", "--export=ALL,HF_TOKEN=S3CR3T"], &["x", "--export=ALL,HF_TOKEN=***"]),
    (&["x", "--export=A=1,HF_TOKEN=S3CR3T,B=2"], &["x", "--export=A=1,HF_TOKEN=***,B=2"]),
    (&["x", "+wandb.api_key=S3CR3T"], &["x", "+wandb.api_key=***"]),
    (&["x", "++wandb.api_key=S3CR3T"], &["x", "++wandb.api_key=***"]),
    (&["x", "wandb={api_key:S3CR3T}"], &["x", "wandb={api_key:***}"]),
    (&["x", "trainer.logger.token='S3CR3T'"], &["x", "trainer.logger.token=***"]),
    (&["x", "--db_pass=S3CR3T"], &["x", "--db_pass=***"]),
    (&["x", "--api_key_value=S3CR3T"], &["x", "--api_key_value=***"]),
    (&["x", "WANDB.API_KEY", "S3CR3T"], &["x", "WANDB.API_KEY", "***"]),
    (&["x", "--opts", "HF_TOKEN", "S3CR3T", "LR", "1"], &["x", "--opts", "HF_TOKEN", "***", "LR", "1"]),
    (&["git", "config", "--global", "hub.token", "S3CR3T"], &["git", "config", "--global", "hub.token", "***"]),
    (&["x", "--set", "hf_token", "=S3CR3T"], &["x", "--set", "hf_token", "=***"]),
    (&["x", "--cfg", "hf_token = \"S3CR3T\""], &["x", "--cfg", "hf_token = ***"]),
    (&["x", "--cfg", "lr = 1, hf_token = S3CR3T"], &["x", "--cfg", "lr = 1, hf_token = ***"]),
    // Variables.
    (&["HF_TOKEN=S3CR3T def"], &["HF_TOKEN=***"]),
    (&["x", "PGPASSWORD=S3CR3T"], &["x", "PGPASSWORD=***"]),
    (&["x", "OPENAI_API_KEYS=S3CR3T,S3CR3T2"], &["x", "OPENAI_API_KEYS=***"]),
    (&["env", "HF_TOKEN=S3CR3T", "python", "x.py"], &["env", "HF_TOKEN=***", "python", "x.py"]),
    (&["env", "-S", "HF_TOKEN=S3CR3T python"], &["env", "-S", "HF_TOKEN=*** python"]),
    // Shells.
    (&["bash", "-c", "env HF_TOKEN='a S3CR3T'  python x.py --password S3CR3T"], &["bash", "-c", "env HF_TOKEN=***  python x.py --password ***"]),
    (&["/bin/sh", "-lc", "HF_TOKEN=S3CR3T python x.py"], &["/bin/sh", "-lc", "HF_TOKEN=*** python x.py"]),
    (&["timeout", "5", "bash", "-o", "pipefail", "-ec", "export A_KEY=S3CR3T; x"], &["timeout", "5", "bash", "-o", "pipefail", "-ec", "export A_KEY=***; x"]),
    (&["bash", "-cex", "python x.py --hf_token S3CR3T"], &["bash", "-cex", "python x.py --hf_token ***"]),
    (&["bash", "-cxue", "x --hf_token 'S3CR3T'"], &["bash", "-cxue", "x --hf_token ***"]),
    (&["su", "-", "me", "--command", "x --api-key S3CR3T"], &["su", "-", "me", "--command", "x --api-key ***"]),
    (&["bash", "-c", "cd /x && sh -c 'env HF_TOKEN=S3CR3T python'"], &["bash", "-c", "cd /x && sh -c 'env HF_TOKEN=*** python'"]),
    (&["bash", "-c", "python x.py --prompt 'the key=is here' --token S3CR3T"], &["bash", "-c", "python x.py --prompt 'the key=is here' --token ***"]),
    (&["bash", "-c", "A=1;HF_TOKEN=S3CR3T python"], &["bash", "-c", "A=1;HF_TOKEN=*** python"]),
    (&["bash", "-c", "cd /x&&HF_TOKEN=S3CR3T python"], &["bash", "-c", "cd /x&&HF_TOKEN=*** python"]),
    (&["bash", "-c", "(HF_TOKEN=S3CR3T python)"], &["bash", "-c", "(HF_TOKEN=*** python)"]),
    (&["bash", "-c", "{ HF_TOKEN=S3CR3T python; }"], &["bash", "-c", "{ HF_TOKEN=*** python; }"]),
    (&["bash", "-c", "export HF_TOKEN=$'a S3CR3T'; x"], &["bash", "-c", "export HF_TOKEN=***; x"]),
    (&["bash", "-c", "export HF_TOKEN=\"a S3CR3T\"; x"], &["bash", "-c", "export HF_TOKEN=***; x"]),
    (&["bash", "-c", "x=$(curl --token S3CR3T h)"], &["bash", "-c", "x=$(curl --token *** h)"]),
    (&["bash", "-c", "x=`curl --token S3CR3T h`"], &["bash", "-c", "x=`curl --token *** h`"]),
    (&["bash", "-c", "echo \"$(curl --hf_token S3CR3T h)\""], &["bash", "-c", "echo \"$(curl --hf_token *** h)\""]),
    (&["bash", "-c", "echo \"$(curl -u \"x:S3CR3T S3CR3T\")\""], &["bash", "-c", "echo \"$(curl -u \"x:***\")\""]),
    (&["bash", "-c", "curl 2>&1 -u x:S3CR3T h"], &["bash", "-c", "curl 2>&1 -u x:*** h"]),
    (&["bash", "-c", "curl > out --token 2>/dev/null S3CR3T h"], &["bash", "-c", "curl > out --token 2>/dev/null *** h"]),
    (&["bash", "-c", "curl > $(f --token S3CR3T) h"], &["bash", "-c", "curl > $(f --token ***) h"]),
    (&["bash", "-c", "cat <<<a\ncurl --token S3CR3T h"], &["bash", "-c", "cat <<<a\ncurl --token *** h"]),
    (&["bash", "-c", "echo {HF_TOKEN=S3CR3T,}"], &["bash", "-c", "echo {HF_TOKEN=***,}"]),
    (&["bash", "-c", "cat > k.json <<E\n{\"api_key\": \"S3CR3T\"}\nE\nx"], &["bash", "-c", "cat > k.json <<E\n{\"api_key\": \"***\"}\nE\nx"]),
    (&["bash", "-c", "cat > k.yaml <<'E'\napi_key: S3CR3T\nE"], &["bash", "-c", "cat > k.yaml <<'E'\napi_key: ***\nE"]),
    (&["bash", "-c", "x --prompt \"it's\" --token S3CR3T"], &["bash", "-c", "x --prompt \"it's\" --token ***"]),
    (&["bash", "-c", "x --a=1 \\\n  --token S3CR3T"], &["bash", "-c", "x --a=1 \\\n  --token ***"]),
    (&["bash", "-c", "wandb login S3CR3T"], &["bash", "-c", "wandb login ***"]),
    (&["bash", "-c", "huggingface-cli login --token S3CR3T"], &["bash", "-c", "huggingface-cli login --token ***"]),
    (&["bash", "-c", "curl -H 'Authorization: Bearer S3CR3T' h"], &["bash", "-c", "curl -H 'Authorization: ***' h"]),
    (&["bash", "-c", "curl -u me:S3CR3T h"], &["bash", "-c", "curl -u me:*** h"]),
    (&["bash", "-c", "x 2>&1 | y --token=S3CR3T"], &["bash", "-c", "x 2>&1 | y --token=***"]),
    (&["ssh", "h", "python x.py --hf_token S3CR3T"], &["ssh", "h", "python x.py --hf_token ***"]),
    (&["x", "--extra_args", "--hf_token S3CR3T"], &["x", "--extra_args", "--hf_token ***"]),
    (&["x", "--extra_args=--hf_token S3CR3T --lr 1"], &["x", "--extra_args=--hf_token *** --lr 1"]),
    (&["sbatch", "--wrap", "x.py --token S3CR3T"], &["sbatch", "--wrap", "x.py --token ***"]),
    (&["bash", "-c", "wandb login --relogin S3CR3T; x"], &["bash", "-c", "wandb login --relogin ***; x"]),
    (&["bash", "-c", "wandb login --host https://h S3CR3T && x"], &["bash", "-c", "wandb login --host https://h *** && x"]),
    (&["bash", "-c", "swanlab login -k S3CR3T && x"], &["bash", "-c", "swanlab login -k *** && x"]),
    (&["bash", "-c", "docker login -u u -p S3CR3T h"], &["bash", "-c", "docker login -u u -p *** h"]),
    (&["bash", "-c", "helm registry login h -u u -p S3CR3T"], &["bash", "-c", "helm registry login h -u u -p ***"]),
    (&["bash", "-c", "oc login h:6443 -p S3CR3T"], &["bash", "-c", "oc login h:6443 -p ***"]),
    (&["bash", "-c", "aws configure set aws_secret_access_key S3CR3T"], &["bash", "-c", "aws configure set aws_secret_access_key ***"]),
    (&["sshpass", "-p", "S3CR3T", "ssh", "h"], &["sshpass", "-p", "***", "ssh", "h"]),
    (&["python train.py --token S3CR3T"], &["python train.py --token ***"]),
    (&["export  A_KEY=\"S3CR3T y"], &["export  A_KEY=*** y"]),
    // Code.
    (&["python3.11", "-c", "token = f(); api_key='S3CR3T'"], &["python3.11", "-c", "token = f(); api_key=***"]),
    (&["python", "-c", "wandb.login(key='S3CR3T')"], &["python", "-c", "wandb.login(key=***)"]),
    (&["python", "-c", "from huggingface_hub import login; login('S3CR3T')"], &["python", "-c", "from huggingface_hub import login; login('***')"]),
    (&["python", "-c", "s.login(\"me\", \"S3CR3T\")"], &["python", "-c", "s.login(\"***\", \"***\")"]),
    (&["python", "-c", "comet_ml.set_api_key('S3CR3T')"], &["python", "-c", "comet_ml.set_api_key('***')"]),
    (&["python3", "-c", "os.environ['HF_TOKEN']='S3CR3T'"], &["python3", "-c", "os.environ['HF_TOKEN']='***'"]),
    (&["python3", "-c", "os.environ.setdefault(\"HF_TOKEN\", \"S3CR3T\")"], &["python3", "-c", "os.environ.setdefault(\"HF_TOKEN\", \"***\")"]),
    // Documents.
    (&["x", "{\"hf_token\":\"S3CR3T\"}"], &["x", "{\"hf_token\":\"***\"}"]),
    (&["x", "--config", "{\"hf_token\": \"S3CR3T\"}"], &["x", "--config", "{\"hf_token\": \"***\"}"]),
    (&["x", "--config={\"wandb\": {\"api_key\": \"S3CR3T\"}}"], &["x", "--config={\"wandb\": {\"api_key\": \"***\"}}"]),
    (&["x", "{\"api_key\": {\"value\": \"S3CR3T\"}, \"lr\": 1}"], &["x", "{\"api_key\": {\"value\": \"***\"}, \"lr\": 1}"]),
    (&["x", "{\"api_keys\": [\"S3CR3T\", \"S3CR3T\"]}"], &["x", "{\"api_keys\": [\"***\", \"***\"]}"]),
    (&["x", "[\"--hf_token\", \"S3CR3T\", \"--lr\", \"1\"]"], &["x", "[\"--hf_token\", \"***\", \"--lr\", \"1\"]"]),
    (&["x", "{\"env\": [{\"name\": \"HF_TOKEN\", \"value\": \"S3CR3T\"}]}"], &["x", "{\"env\": [{\"name\": \"HF_TOKEN\", \"value\": \"***\"}]}"]),
    (&["x", "{\"env\": \"{\\\"hf_token\\\": \\\"S3CR3T\\\"}\"}"], &["x", "{\"env\": \"{\\\"hf_token\\\": \\\"***\\\"}\"}"]),
    (&["x", "{\"run\": \"export A=1\\nexport HF_TOKEN=S3CR3T\\nx\"}"], &["x", "{\"run\": \"export A=1\\nexport HF_TOKEN=***\\nx\"}"]),
    (&["x", "{'hf_token': 'S3CR3T', 'lr': 1}"], &["x", "{'hf_token': '***', 'lr': 1}"]),
    (&["x", "{\"password\": 12345}"], &["x", "{\"password\": ***}"]),
    (&["x", "{api_key: S3CR3T}"], &["x", "{api_key: ***}"]),
    (&["x", "{\"Authorization\": \"Bearer S3CR3T\"}"], &["x", "{\"Authorization\": \"***\"}"]),
    (&["bash", "-c", "x --config '{\"hf_token\": \"S3CR3T\"}'"], &["bash", "-c", "x --config '{\"hf_token\": \"***\"}'"]),
    (&["bash", "-c", "x --config=\"{\\\"hf_token\\\": \\\"S3CR3T\\\"}\""], &["bash", "-c", "x --config=\"{\\\"hf_token\\\": \\\"***\\\"}\""]),
    // URLs.
    (&["x", "https://u:S3CR3T@h/x"], &["x", "https://***@h/x"]),
    (&["x", "redis://:S3CR3T@h"], &["x", "redis://***@h"]),
    (&["x", "git+https://S3CR3T@github.com/x/y"], &["x", "git+https://***@github.com/x/y"]),
    (&["x", "--proxy", "user:S3CR3T@proxy:3128"], &["x", "--proxy", "***@proxy:3128"]),
    (&["x", "--dsn", "user:S3CR3T@tcp(h:3306)/db"], &["x", "--dsn", "***@tcp(h:3306)/db"]),
    (&["x", "https://h/x?token=S3CR3T"], &["x", "https://h/x?token=***"]),
    (&["x", "--data", "https://h/x?a=1&access_token=S3CR3T&b=2"], &["x", "--data", "https://h/x?a=1&access_token=***&b=2"]),
    (&["x", "--data=https://b/k?X-Amz-Security-Token=S3CR3T&X-Amz-Signature=S3CR3T"], &["x", "--data=https://b/k?X-Amz-Security-Token=***&X-Amz-Signature=***"]),
    (&["x", "https://a.blob.core.windows.net/c?sv=1&sig=S3CR3T"], &["x", "https://a.blob.core.windows.net/c?sv=1&sig=***"]),
    (&["x", "--blob", "?sv=2023-01-03&sig=S3CR3T"], &["x", "--blob", "?sv=2023-01-03&sig=***"]),
    (&["x", "--blob", "sv=2023-01-03&sig=S3CR3T&se=1"], &["x", "--blob", "sv=2023-01-03&sig=***&se=1"]),
    (&["x", "--blob=?sig=S3CR3T"], &["x", "--blob=?sig=***"]),
    (&["bash", "-c", "curl \"$BASE?sv=1&sig=S3CR3T\""], &["bash", "-c", "curl \"$BASE?sv=1&sig=***\""]),
    (&["x", "--note", "append ?sv=1&sig=S3CR3T to it"], &["x", "--note", "append ?sv=1&sig=*** to it"]),
    (&["x", "--hook", "https://hooks.slack.com/services/T/B/S3CR3T"], &["x", "--hook", "https://hooks.slack.com/services/***"]),
    (&["bash", "-c", "curl \"https://h/x?token=S3CR3T&a=1\""], &["bash", "-c", "curl \"https://h/x?token=***&a=1\""]),
    // Headers and the rest.
    (&["x", "-H", "Authorization: Bearer S3CR3T"], &["x", "-H", "Authorization: ***"]),
    (&["x", "--header=Authorization: Bearer S3CR3T"], &["x", "--header=Authorization: ***"]),
    (&["x", "-HX-Api-Key: S3CR3T"], &["x", "-HX-Api-Key: ***"]),
    (&["x", "--opt", "api_key: S3CR3T"], &["x", "--opt", "api_key: ***"]),
    (&["x", "--conn", "Server=x;Password=S3CR3T;"], &["x", "--conn", "Server=x;Password=***;"]),
    (&["x", "--conn", "AccountName=x;AccountKey=S3CR3T==;EndpointSuffix=y"], &["x", "--conn", "AccountName=x;AccountKey=***;EndpointSuffix=y"]),
    (&["x", "--note", "run it with HF_TOKEN=S3CR3T please"], &["x", "--note", "run it with HF_TOKEN=*** please"]),
    (&["x", "--note", "run it with --hf_token S3CR3T please"], &["x", "--note", "run it with --hf_token *** please"]),
    (&["x", "hf_abcdefghijklmnopqrstuvwxyzS3CR3T"], &["x", "***"]),
    (&["x", "--git", "ghp_abcdefghijklmnopqrstuvwxyzS3CR3T"], &["x", "--git", "***"]),
    (&["x", "--git", "ghu_abcdefghijklmnopqrstuvwxyzS3CR3T"], &["x", "--git", "***"]),
    (&["x", "--web", "eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzI1NiJ9.e30.S3CR3T"], &["x", "--web", "***"]),
    (&["x", "--web", "eyJraWQiOiIxIiwiYWxnIjoiUlMyNTYifQ.e30.S3CR3T"], &["x", "--web", "***"]),
    (&["x", "--file", "a\n-----BEGIN RSA PRIVATE KEY-----\nS3CR3T\n-----END RSA PRIVATE KEY-----\nb"], &["x", "--file", "a\n***\nb"]),
];

/// Arguments that are shown unchanged.
#[rustfmt::skip]
const SHOWN: &[&[&str]] = &[
    &["x", "--tokenizer", "t5"],
    &["x", "--tokenizer_path=/m/t5"],
    &["x", "--max_tokens", "4096"],
    &["x", "--max_new_tokens=512"],
    &["x", "--num_tokens", "1e12"],
    &["x", "--tokens", "1000000"],
    &["x", "--token_ids", "1", "2"],
    &["x", "--keyboard", "us"],
    &["x", "--monkey=patch"],
    &["x", "--author", "me"],
    &["x", "--pad_token_id", "0"],
    &["x", "--image_key", "jpg", "--caption_key", "txt"],
    &["x", "--data_file_keys", "image,video"],
    &["x", "--num_key_value_heads=8"],
    &["x", "--token"],
    &["x", "--token", "--lr", "3"],
    &["x", "--use-token", "--lr", "1"],
    &["x", "--use_auth_token", "true"],
    &["x", "--no_auth", "--lr", "1"],
    &["x", "--token="],
    &["x", "--token=None"],
    &["x", "--token=$HF_TOKEN"],
    &["x", "--token", "${HF_TOKEN}"],
    &["x", "HF_TOKEN=$(HF_TOKEN)"],
    &["x", "--hf_token_file", "/run/hf"],
    &["x", "--num_passes", "2"],
    &["x", "--forward_pass", "bf16"],
    &["x", "--passthrough=all"],
    &["x", "--pin_memory", "true"],
    &["x", "--export=ALL,NCCL_DEBUG=INFO"],
    &["x", "model.num_heads=40", "model.key_dim=64"],
    &["x", "NCCL_IB_HCA==mlx5_0,mlx5_1"],
    &["x", "LS_COLORS=rs=0:di=01;34:ln=01;36"],
    &["x", "--size", "832*480"],
    &["x", "--lr", "-1e-4"],
    &["x", "--opts", "MODEL.NAME", "x", "MODEL.NUM_TOKENS", "5"],
    &["x", "MODEL.TOKENIZER", "t5", "DATA.PATH", "/d"],
    &["x", "--opts", "WANDB.API_KEY", "None", "HF_TOKEN", "$HF_TOKEN"],
    &["x", "--columns", "key", "value"],
    &["x", "key", "value"],
    &["x", "--exp_name", "remove_token", "train.py"],
    &["python", "train_token.py", "config.yaml"],
    &["python", "/data/secret/train.py", "config.yaml"],
    &["x", "HF_TOKEN", "--lr", "1"],
    &["get_token", "x"],
    &["git", "checkout", "fix-token", "main"],
    &["kubectl", "get", "secret", "hf-token", "-o", "yaml"],
    &["docker", "run", "-e", "HF_TOKEN", "ubuntu", "bash"],
    &["env", "-u", "HF_TOKEN", "python", "x.py"],
    &["bash", "-c", "unset HF_TOKEN WANDB_API_KEY; export HF_TOKEN; x"],
    &["bash", "-c", "wandb login; docker login -u u h --password-stdin < f"],
    &["bash", "-c", "wandb login $WANDB_API_KEY"],
    &["ssh", "login", "-p", "22", "uptime"],
    &["python", "-c", "print('login'); f('x')"],
    &["python", "-c", "logging('x'); set_seed('a'); get_token('b')"],
    &["x", "--cfg", "lr = 1, max_tokens = 5"],
    &["python", "-c", "token = f()"],
    &["python", "-c", "login(host='h', user=\"u\")"],
    &["x", "--cfg", "hf_token = os.environ['HF_TOKEN']"],
    &["x", "?max_tokens=5&page=2", "a=1&b=2", "shard?.tar"],
    &["x", "--model", "sasrec", "--patience", "3", "--sk-learn", "yes"],
    &["x", "--connection", "string", "--dsn", "h:3306/db"],
    // Sentences.
    &["x", "--prompt", "the key=is here"],
    &["x", "--prompt", "is it so? the key=is here"],
    &["x", "--prompt", "the key = love, don't"],
    &["x", "--prompt", "the --token is here"],
    &["x", "--prompt=the key=is here"],
    &["x", "--prompt", "a monkey's token of love: the secret of the password"],
    &["x", "--prompt", "key: the hero of the story walks in"],
    &["x", "--prompt", "Bearer of bad news"],
    &["x", "--prompt", "a cat & a dog; both, with a token"],
    &["x", "--prompt", "一只猫 token 秘密"],
    &["x", "--negative_prompt", "low quality, (blurry), {bad}"],
    &["generate.py", "-c", "the key=is here"],
    &["bash", "run.sh", "--prompt", "the key=is here"],
    &["x", "--prompt", "she said \"the password is in the garden\""],
    &["x", "--prompt", "two lines\nof a token, and a key"],
    // Shells.
    &["bash", "-c", "cd /x && torchrun --nproc_per_node=8 train.py"],
    &["bash", "-c", "x --max_tokens 5; y --tokenizer t5"],
    &["bash", "-c", "export HF_TOKEN=$HF_TOKEN; x --token \"$HF_TOKEN\""],
    &["bash", "-c", "test -n \"$HF_TOKEN\" || exit 1"],
    &["bash", "-c", "[ -z \"${API_KEY:-}\" ] && echo none"],
    &["bash", "-c", "echo \"$(date '+%Y%m%d')\" > log"],
    &["bash", "-c", "for i in 1 2; do python x.py --i $i; done"],
    &["bash", "-c", "x # the token is there"],
    &["bash", "-c", "cat <<E\n{\"lr\": 1, \"eos_token\": \"</s>\"}\nE"],
    &["bash", "-c", "echo don't && echo it's"],
    &["bash", "-c", "python -c 'import torch; print(torch.cuda.is_available())'"],
    &["bash", "-cex", "torchrun --nproc_per_node=16 train.py"],
    &["ssh", "-p", "22", "h", "nvidia-smi -L"],
    &["docker", "run", "-p", "8000:8000", "image"],
    &["python", "-c", "token = f(); keys = [1]"],
    &["python", "-c", "d['eos_token'] = '</s>'"],
    &["python", "-c", "os.environ.get('HF_TOKEN')"],
    &["python", "-m", "torch.distributed.run", "--nnodes=2", "train.py"],
    // Documents.
    &["x", "{\"lr\": 1, \"tokenizer\": \"t5\"}"],
    &["x", "{\"bos_token\": \"<s>\", \"num_heads\": 40}"],
    &["x", "{ \"a\" : [ 1 , 2 ] }"],
    &["x", "{\"token\": null, \"use_auth\": true}"],
    &["x", "{\"name\": \"NCCL_DEBUG\", \"value\": \"INFO\"}"],
    &["x", "{\"max_tokens\": 4096}"],
    &["x", "{ no json"],
    &["x", "{prompt}"],
    &["x", "[1, 2, 3]"],
    &["x", "model={dim:64,heads:8}"],
    // URLs and addresses.
    &["x", "https://h/x?max_tokens=5&page=2"],
    &["x", "https://h/x?model=a#top"],
    &["x", "tcp://10.0.0.1:29500"],
    &["x", "http://proxy:3128"],
    &["x", "s3://bucket/key/file"],
    &["x", "hf://org/model@main"],
    &["x", "nvcr.io/nvidia/pytorch:24.01@sha256:0123abcd"],
    &["x", "me@host.example"],
    &["x", "rdzv:29400"],
    &["x", "[::1]:29500"],
    &["x", "a:b"],
    &["x", "sk-short"],
    &["x", "hf_model_name"],
    &["x", "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----"],
    &["x", "Accept: application/json"],
    &["x", "Content-Type: text/plain"],
];

fn masked(args: &[&str]) -> Vec<String> {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    mask_args(&args).iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

#[test]
fn arguments_lose_their_secrets_and_nothing_else() {
    let mut wrong = Vec::new();
    for (args, shown) in HIDDEN {
        let found = masked(args);
        if found != *shown {
            wrong.push(format!("{args:?}\n  is  {found:?}\n  not {shown:?}"));
        }
    }
    for args in SHOWN {
        let found = masked(args);
        if found != *args {
            wrong.push(format!("{args:?}\n  is  {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    let names = SECRET_NAMES.len() + OPEN_NAMES.len();
    assert!(HIDDEN.len() + SHOWN.len() >= 150 && names >= 90);
    assert!(SHOWN.len() * 5 >= HIDDEN.len() * 4, "about half of the rows hold no secret");
}

#[test]
fn variables_lose_their_secrets_and_nothing_else() {
    for (name, value, shown) in [
        ("HF_TOKEN", "abc", "***"),
        ("HF_TOKEN", "", ""),
        ("EXTRA_ARGS", "--lr 1 --token abc", "--lr 1 --token ***"),
        ("SM_HPS", "{\"hf_token\":\"abc\"}", "{\"hf_token\":\"***\"}"),
        (
            "RAY_JOB_CONFIG_JSON_ENV_VAR",
            "{\"runtime_env\":{\"env_vars\":{\"HF_TOKEN\":\"abc\"}}}",
            "{\"runtime_env\":{\"env_vars\":{\"HF_TOKEN\":\"***\"}}}",
        ),
        ("SM_USER_ARGS", "[\"--hf_token\",\"abc\"]", "[\"--hf_token\",\"***\"]"),
        ("HTTPS_PROXY", "http://u:abc@p:1", "http://***@p:1"),
        ("CONNECTION", "AccountName=a;AccountKey=abc", "AccountName=a;AccountKey=***"),
        ("DATA", "https://b/x?X-Amz-Security-Token=abc", "https://b/x?X-Amz-Security-Token=***"),
        ("CMD", "A=1;HF_TOKEN=abc python", "A=1;HF_TOKEN=*** python"),
        ("HEADER", "Authorization: Bearer abc", "Authorization: ***"),
        ("HOME", "/root", "/root"),
        ("PWD", "/root", "/root"),
        ("PS1", "\\u@\\h:\\w\\$ ", "\\u@\\h:\\w\\$ "),
        ("LS_COLORS", "rs=0:di=01;34", "rs=0:di=01;34"),
        ("NCCL_SOCKET_IFNAME", "eth0", "eth0"),
        ("LESSOPEN", "| /usr/bin/lesspipe %s", "| /usr/bin/lesspipe %s"),
        ("BASH_FUNC_x%%", "() {  echo a\n}", "() {  echo a\n}"),
    ] {
        assert_eq!(mask_value(name, value.as_ref()), shown, "{name}={value}");
    }
}

#[test]
fn files_keep_all_but_their_secrets() {
    for (text, shown) in [
        ("# c\nNCCL_DEBUG=INFO\nX_TOKEN=a b\n", "# c\nNCCL_DEBUG=INFO\nX_TOKEN=***\n"),
        ("A=1\nexport HF_TOKEN=\"a\nb\nc\"\nB=2\n", "A=1\nexport HF_TOKEN=***\nB=2\n"),
        (
            "{ \"num_heads\": 40, \"bos_token\": \"<s>\" }",
            "{ \"num_heads\": 40, \"bos_token\": \"<s>\" }",
        ),
        (
            "{\"env_vars\": {\"A_KEY\": \"x\",  \"B\": \"y\"}}",
            "{\"env_vars\": {\"A_KEY\": \"***\",  \"B\": \"y\"}}",
        ),
        (
            "{\"name\": \"API_KEY\", \"value\": \"x\"}",
            "{\"name\": \"API_KEY\", \"value\": \"***\"}",
        ),
        ("{ no json", "{ no json"),
        ("index=https://u:p@host/simple\n", "index=https://***@host/simple\n"),
        (
            "lr: 1\nwandb:\n  api_key: x y\n  project: p\n",
            "lr: 1\nwandb:\n  api_key: ***\n  project: p\n",
        ),
        ("private_key: |\n  a\n  b\nlr: 1\n", "private_key: |\n  ***\n  ***\nlr: 1\n"),
        ("export HF_TOKEN=$(cat /x)\n", "export HF_TOKEN=***\n"),
        ("max_tokens: 5\r\ntoken: x\r\n", "max_tokens: 5\r\ntoken: ***\r\n"),
        ("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\nlr=1\n", "***\nlr=1\n"),
    ] {
        assert_eq!(mask_file(text), shown);
    }
}

#[test]
fn documents_keep_all_but_their_secrets() {
    let mut document = serde_json::json!({
        "env": [{ "variable": "API_KEY", "value": "x" }, { "name": "LR", "value": "1" }],
        "url": "https://u:p@h/x?sig=s",
        "token": "x",
        "lr": 1,
    });
    mask_json(&mut document);
    assert_eq!(
        document,
        serde_json::json!({
            "env": [{ "variable": "API_KEY", "value": "***" }, { "name": "LR", "value": "1" }],
            "url": "https://***@h/x?sig=***",
            "token": "***",
            "lr": 1,
        })
    );
}

#[test]
fn invalid_utf8_stays_unchanged() {
    let odd = OsString::from_vec(b"\xff mixed \x80".to_vec());
    assert_eq!(mask_value("X", &odd), odd);
    let odd = [odd];
    assert_eq!(mask_args(&odd), odd);
}

/// Texts that make a reader search far from every byte.
#[test]
fn no_text_takes_long() {
    let started = std::time::Instant::now();
    for piece in [
        "$(",
        "${",
        "\"$(",
        "'\"",
        "\\\"",
        "://",
        "hf_",
        "{\"a\":",
        "[",
        "a=",
        "token=",
        "`",
        "<<E\n",
        "-----BEGIN PRIVATE KEY-----",
        "x: ",
        "token=,",
    ] {
        let text = piece.repeat(20_000 / piece.len());
        for args in [vec!["bash", "-c", &text], vec![text.as_str()], vec!["x", &text]] {
            masked(&args);
        }
        mask_file(&text);
    }
    // A quadratic reader would take a second or more per piece.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

/// Whether the shown text is the original with parts replaced.
fn is_masked(text: &str, shown: &str) -> bool {
    let mut rest = text;
    let mut pieces = shown.split(MASK);
    let Some(first) = pieces.next() else { return false };
    let Some(after) = rest.strip_prefix(first) else { return false };
    rest = after;
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = rest.get(at + piece.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Words that are no secrets, some of them difficult.
fn harmless() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        "--[a-z]{2,6}=[0-9]{1,3}",
        "-[a-z]",
        Just("&&".to_owned()),
        Just("a;b".to_owned()),
        Just("it's".to_owned()),
        Just("say \"hi\"".to_owned()),
        Just("{a: 1}".to_owned()),
        Just("https://h/x?page=2".to_owned()),
        Just("日本 語".to_owned()),
        Just("a\nb".to_owned()),
        Just("--max_tokens".to_owned()),
        Just("--tokenizer".to_owned()),
    ]
}

/// Places for a secret in one argument; `%` is its position.
const PLACES: &[&str] = &[
    "HF_TOKEN=%",
    "--hf_token=%",
    "--api-key=%",
    "--export=ALL,HF_TOKEN=%,A=1",
    "{\"hf_token\": \"%\"}",
    "{\"a\": [{\"name\": \"API_KEY\", \"value\": \"%\"}]}",
    "--config={\"wandb\": {\"api_key\": \"%\"}}",
    "https://user:%@host/path",
    "https://host/x?a=1&access_token=%&b=2",
    "https://host/x?X-Amz-Signature=%",
    "Authorization: Bearer %",
    "python x.py --hf_token % --lr 1",
    "--hf_token %",
    "cd /x && HF_TOKEN=% python x.py",
    "export A=1; export API_KEY='%'; x",
    "-----BEGIN PRIVATE KEY-----\n%\n-----END PRIVATE KEY-----",
];

proptest! {
    #[test]
    fn nothing_but_secrets_changes(args in proptest::collection::vec("(\\PC|[-=:;&|$(){}'\"\\\\\n ]|token|key|--|://){0,30}", 0..5)) {
        let given: Vec<OsString> = args.iter().map(OsString::from).collect();
        let shown = mask_args(&given);
        prop_assert_eq!(shown.len(), args.len());
        for (shown, arg) in shown.iter().zip(&args) {
            prop_assert!(is_masked(arg, &shown.to_string_lossy()), "{arg:?} → {shown:?}");
        }
        for arg in &args {
            let file = mask_file(arg);
            prop_assert!(is_masked(arg, &file), "{arg:?} → {file:?}");
            let value = mask_value("X", arg.as_ref());
            prop_assert!(is_masked(arg, &value.to_string_lossy()), "{arg:?} → {value:?}");
        }
    }

    #[test]
    fn a_planted_secret_is_never_shown(
        before in proptest::collection::vec(harmless(), 0..4),
        place in proptest::sample::select(PLACES),
        // Characters that do not occur in this order in any place or harmless word.
        secret in "Zq[A-Za-z0-9+/_-]{10,30}",
        after in proptest::collection::vec(harmless(), 0..4),
    ) {
        let planted = place.replace('%', &secret);
        let mut args: Vec<OsString> = vec!["x".into()];
        args.extend(before.iter().map(OsString::from));
        args.push(planted.clone().into());
        args.extend(after.iter().map(OsString::from));
        for arg in mask_args(&args) {
            prop_assert!(!arg.to_string_lossy().contains(&secret), "{args:?} → {arg:?}");
        }
        let value = mask_value("X", planted.as_ref());
        prop_assert!(!value.to_string_lossy().contains(&secret), "{planted:?} → {value:?}");
        let script = format!("cd /x\n{}\n", planted.replace('\n', " "));
        let words = mask_args(&["bash".into(), "-c".into(), script.clone().into()]);
        // Without quotes, the header is two words and the other text is no document.
        if !place.starts_with("Authorization") && !place.contains("\"name\"") {
            let shown = words.last().map(|word| word.to_string_lossy().into_owned());
            prop_assert!(shown.is_some_and(|shown| !shown.contains(&secret)), "{script:?}");
        }
    }

    #[test]
    fn masked_file_keeps_all_other_text(text in "(\\PC|[-=:;&|$(){}'\"\\\\\n ]|token|HF_TOKEN=|--key |://){0,30}") {
        let once = mask_file(&text);
        prop_assert!(is_masked(&text, &once));
    }
}
