//! Images from files: OCI layouts, archives, and root file systems.

use std::{fs, io::Write as _, path::Path, process::Command};

use rollout_sandbox::{
    Image, Network, SandboxLimits, SandboxSpec,
    oci::{ImageSource, PullError, RegistryImages, RegistryOptions},
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::common::{Host, run};

/// A system of one program, which prints a file.
fn rootfs(dir: &Path, text: &str) -> Vec<u8> {
    let archive = dir.join(format!("{text}.tar"));
    if let Ok(known) = fs::read(&archive) {
        return known;
    }
    let root = dir.join(format!("root-{text}"));
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    fs::write(root.join("text"), text).unwrap();
    let packed =
        Command::new("tar").args(["-C"]).arg(&root).arg("-cf").arg(&archive).arg(".").status().unwrap();
    assert!(packed.success());
    fs::read(archive).unwrap()
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a blob and returns its descriptor.
fn blob(layout: &Path, bytes: &[u8]) -> serde_json::Value {
    let hash = hash(bytes);
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    fs::write(layout.join("blobs/sha256").join(&hash), bytes).unwrap();
    json!({"digest": format!("sha256:{hash}"), "size": bytes.len(), "mediaType": "application/octet-stream"})
}

/// Writes a layout with one image for each text, named after it.
fn write_layout(dir: &Path, texts: &[&str]) {
    let mut manifests = Vec::new();
    for text in texts {
        let layer = rootfs(dir.parent().unwrap(), text);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&layer).unwrap();
        let layer = blob(dir, &packed.finish().unwrap());
        let config =
            blob(dir, json!({"config": {"WorkingDir": "/bin", "Env": ["A=1"]}}).to_string().as_bytes());
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
        let mut described = blob(dir, manifest.to_string().as_bytes());
        described["annotations"] = json!({"org.opencontainers.image.ref.name": text});
        manifests.push(described);
    }
    fs::write(dir.join("index.json"), json!({"schemaVersion": 2, "manifests": manifests}).to_string())
        .unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
}

/// What an image's file contains, seen from inside.
async fn text(host: &Host, image: Image) -> String {
    let spec = SandboxSpec {
        name: "imported".into(),
        image,
        network: Network::None,
        limits: SandboxLimits::default(),
        private_dirs: Vec::new(),
        hosts: Vec::new(),
    };
    let sandbox = host.engine.create(spec).await.unwrap();
    let output = run(&sandbox, crate::common::command(&["/bin/busybox", "cat", "/text"])).await;
    sandbox.destroy().await.unwrap();
    output.stdout
}

#[tokio::test]
async fn layouts_archives_and_root_file_systems_are_imported_once() {
    let host = Host::start().await;
    let store = RegistryImages::new(host.engine.clone(), RegistryOptions::default());
    let place = tempfile::tempdir().unwrap();
    let layout = place.path().join("layout");
    write_layout(&layout, &["one", "two"]);

    let both = store.import(&ImageSource::Layout(layout.clone(), None)).await.unwrap_err();
    assert!(
        matches!(&both, PullError::Import { source, .. } if source.to_string().contains("2 images")),
        "{both:?}"
    );
    let two = ImageSource::Layout(layout.clone(), Some("two".into()));
    let image = store.import(&two).await.unwrap();
    assert_eq!((image.config().workdir.as_str(), image.config().env.len()), ("/bin", 2));
    assert_eq!(text(&host, image.clone()).await, "two");

    // The archive of a layout with one image.
    let single = place.path().join("single");
    write_layout(&single, &["two"]);
    let archive = place.path().join("single-layout.tar");
    let packed =
        Command::new("tar").arg("-C").arg(&single).arg("-cf").arg(&archive).arg(".").status().unwrap();
    assert!(packed.success());
    let again = store.import(&ImageSource::Archive(archive)).await.unwrap();
    assert_eq!(again.identity(), image.identity(), "the same layers and configuration");

    let rootfs = ImageSource::Rootfs(place.path().join("one.tar"));
    assert_eq!(text(&host, store.import(&rootfs).await.unwrap()).await, "one");

    // A later engine finds them without the files' content.
    let later = RegistryImages::new(host.engine.clone(), RegistryOptions::default());
    fs::remove_dir_all(layout.join("blobs")).unwrap();
    assert_eq!(text(&host, later.import(&two).await.unwrap()).await, "two");
}

#[tokio::test]
async fn a_corrupt_or_hostile_layout_is_rejected() {
    let host = Host::start().await;
    let store = RegistryImages::new(host.engine.clone(), RegistryOptions::default());
    let place = tempfile::tempdir().unwrap();
    let layout = place.path().join("layout");
    let outside = place.path().join("outside");
    fs::write(&outside, "{}").unwrap();

    let reject = async |change: &dyn Fn(&Path)| {
        if layout.exists() {
            fs::remove_dir_all(&layout).unwrap();
        }
        fs::create_dir(&layout).unwrap();
        write_layout(&layout, &["one"]);
        change(&layout);
        let error = store.import(&ImageSource::Layout(layout.clone(), None)).await.unwrap_err();
        assert!(matches!(&error, PullError::Import { .. }), "{error:?}");
        assert!(error.is_permanent());
    };
    // The largest blob is the layer.
    let layer = |layout: &Path| {
        let blobs = fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|entry| entry.unwrap().path());
        blobs.max_by_key(|path| path.metadata().unwrap().len()).unwrap()
    };
    reject(&|layout| {
        let path = layer(layout);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    })
    .await;
    reject(&|layout| fs::remove_file(layer(layout)).unwrap()).await;
    reject(&|layout| {
        let path = layer(layout);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&outside, path).unwrap();
    })
    .await;
    reject(&|layout| fs::write(layout.join("index.json"), r#"{"manifests": []}"#).unwrap()).await;
    reject(&|layout| fs::write(layout.join("index.json"), "not JSON").unwrap()).await;
    let digest = r#"{"manifests": [{"digest": "sha256:../../../outside"}]}"#;
    reject(&|layout| fs::write(layout.join("index.json"), digest).unwrap()).await;
}

/// The directory of a test whose child is killed; set only for the child.
const KILLED: &str = "ROLLOUT_SANDBOX_TEST_KILLED";

/// Files of the system that is imported while it is killed.
const MANY: usize = 3000;

#[tokio::test]
async fn a_killed_import_leaves_a_usable_store() {
    let import = async |dir: &Path| {
        let engine = crate::common::engine(&dir.join("state")).await;
        let store = RegistryImages::new(engine.clone(), RegistryOptions::default());
        let image = store.import(&ImageSource::Rootfs(dir.join("many.tar"))).await.unwrap();
        (engine, image)
    };
    if let Some(dir) = std::env::var_os(KILLED) {
        import(Path::new(&dir)).await;
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut archive = tar::Builder::new(fs::File::create(place.path().join("many.tar")).unwrap());
    for number in 0..MANY {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(5);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        archive.append_data(&mut header, format!("files/{number}"), &b"text\n"[..]).unwrap();
    }
    archive.into_inner().unwrap();
    let (mut killed, mut completed) = (0, 0);
    // Later and later, so that every part of an import is interrupted.
    for round in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["imports::a_killed_import_leaves_a_usable_store", "--exact"])
            .env(KILLED, place.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(25 * round));
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            completed += 1;
            fs::remove_dir_all(place.path().join("state")).unwrap();
        } else {
            killed += 1;
        }
    }
    assert!(killed > 0, "{completed} imports were completed before they were killed");
    let (engine, image) = import(place.path()).await;
    let json = serde_json::to_value(&image).unwrap();
    let layer = Path::new(json["parts"][0]["lower"][0].as_str().unwrap());
    assert_eq!(fs::read_dir(layer.join("files")).unwrap().count(), MANY);
    let slot = layer.parent().unwrap().parent().unwrap();
    let mut expected = [layer.parent().unwrap().file_name().unwrap(), "current".as_ref(), "lock".as_ref()];
    expected.sort();
    // Temporary files of an import are removed in the background.
    let began = std::time::Instant::now();
    loop {
        let mut left: Vec<_> = fs::read_dir(slot).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        if left == expected {
            break;
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(600), "killed imports left {left:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(engine);
}
