//! The hub on loopback, checked by the official client.

use rollout_testkit::{HubServer, Python};
use serde_json::{Value, json};

/// Pushes a folder twice and reads it back, with the package that people use.
const CLIENT: &str = r#"
import json, os, sys, tempfile
reported = json.load(sys.stdin)
os.environ.update(HF_ENDPOINT=reported["url"], HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1",
                  HF_HUB_DISABLE_TELEMETRY="1", HF_HOME=tempfile.mkdtemp())
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
api = HfApi(token=reported["token"])
found = {"name": api.whoami()["name"]}
repo = api.create_repo("tester/data", repo_type="dataset", private=True)
found["repo"] = repo.repo_id
api.create_repo("tester/data", repo_type="dataset", exist_ok=True)
folder = tempfile.mkdtemp()
files = {"a.csv": b"a,b\n1,2\n", "sub/\u00fc.jsonl": b"{}\n", "README.md": b"---\ntags: []\n---\n", "empty": b"",
         "large.bin": os.urandom(2500), "table.parquet": b"PAR1"}
for name, content in files.items():
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "wb").write(content)
push = lambda: api.upload_folder(repo_id="tester/data", repo_type="dataset", folder_path=folder, commit_message="push")
first, second = push(), push()
found["again"] = first.oid == second.oid
one = hf_hub_download("tester/data", "large.bin", repo_type="dataset", token=reported["token"])
found["large"] = open(one, "rb").read() == files["large.bin"]
there = snapshot_download("tester/data", repo_type="dataset", token=reported["token"])
found["all"] = all(open(os.path.join(there, name), "rb").read() == content for name, content in files.items())
found["private"] = api.repo_info("tester/data", repo_type="dataset").private
found["names"] = sorted(api.list_repo_files("tester/data", repo_type="dataset"))
try:
    HfApi(token="hf_wrong").whoami()
except Exception as error:
    found["wrong"] = error.response.status_code
print(json.dumps(found, sort_keys=True))
"#;

#[track_caller]
fn check(server: &HubServer) {
    let reported = json!({"url": server.url(), "token": HubServer::TOKEN});
    let found: Value = Python::new().run(CLIENT, &reported.to_string()).parse().expect("it prints JSON");
    let names =
        [".gitattributes", "README.md", "a.csv", "empty", "large.bin", "sub/ü.jsonl", "table.parquet"];
    let expected = json!({
        "name": "tester", "repo": "tester/data", "again": true, "large": true, "all": true, "private": true,
        "names": names, "wrong": 401,
    });
    assert_eq!(found, expected);
    assert_eq!(server.commits("tester/data"), ["initial commit", "push"]);
    assert_eq!(server.is_private("tester/data"), Some(true));
    assert_eq!(server.files("tester/data")["large.bin"].len(), 2500);
    assert_eq!(server.leaks(), 0);
}

#[test]
fn the_official_client_pushes_and_reads_back() {
    check(&HubServer::start());
}

#[test]
fn the_official_client_pushes_large_files_in_parts() {
    let server = HubServer::start().parts_of(1000);
    check(&server);
    let requests = server.requests();
    let parts = requests.iter().filter(|line| line.contains("storage PUT") && line.contains("part="));
    assert_eq!(parts.count(), 3 + 1, "{requests:#?}");
}
