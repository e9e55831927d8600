//! Pulled images inside: what has no power there, and the files that every sandbox gets.

use std::{fs, io, os::unix::fs::symlink, path::Path};

use rollout_sandbox::{
    Image, Network, RunningSandbox, SandboxLimits, SandboxSpec,
    build::{BaseImageError, BaseImages, BuildRequest, LogSink, build},
};
use tar::EntryType;

use crate::{
    common::{Host, command, out, run},
    project::{Project, chain},
    registry::{Registry, file, header, images, layer, pull, sandbox},
};

/// Entries of an archive that must not come alive: a file with set-user-ID bits, and devices of the machine.
fn hostile_archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let program = fs::read("/bin/busybox").unwrap();
    let mut entry = header();
    entry.set_mode(0o6755);
    entry.set_size(program.len() as u64);
    archive.append_data(&mut entry, "hostile/busybox", &*program).unwrap();
    for (name, kind, major, minor) in [("disk", EntryType::Block, 254, 0), ("memory", EntryType::Char, 1, 1)]
    {
        let mut entry = header();
        entry.set_entry_type(kind);
        entry.set_mode(0o666);
        entry.set_size(0);
        entry.set_device_major(major).unwrap();
        entry.set_device_minor(minor).unwrap();
        archive.append_data(&mut entry, format!("hostile/{name}"), io::empty()).unwrap();
    }
    archive.into_inner().unwrap()
}

/// What an ordinary user of a sandbox gets from the hostile entries.
async fn attempt(inside: &RunningSandbox) -> String {
    let (mut id, stdout, stderr) = command(&["/hostile/busybox", "id", "-u"]);
    id.user = Some("65534:65534".into());
    let id = run(inside, (id, stdout, stderr)).await.stdout;
    let list = run(inside, command(&["/hostile/busybox", "ls", "/hostile"])).await.stdout;
    format!("{id}{list}")
}

#[tokio::test]
async fn set_user_id_programs_and_devices_of_layers_and_archives_have_no_power() {
    let (host, registry) = (Host::start().await, Registry::start());
    registry.image("hostile", "1", &[hostile_archive()]);
    let image = pull(&images(&host, &[&registry]), &registry, "hostile:1").await.unwrap();
    let inside = sandbox(&host, image).await;
    assert_eq!(attempt(&inside).await, "65534\nbusybox\n");
    inside.destroy().await.unwrap();

    let project = Project::new("FROM base\nADD hostile.tar /\n");
    fs::write(project.context().join("hostile.tar"), hostile_archive()).unwrap();
    let built = project.build(&host).await.unwrap();
    let inside = sandbox(&host, built.image).await;
    assert_eq!(attempt(&inside).await, "65534\nbusybox\n");
    assert_eq!(out(&inside, "find / -xdev -type b").await, "");
    inside.destroy().await.unwrap();
}

#[tokio::test]
async fn a_pulled_image_resolves_localhost_and_its_own_name() {
    let (host, registry) = (Host::start().await, Registry::start());
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("bin")).unwrap();
    fs::copy("/bin/busybox", root.path().join("bin/busybox")).unwrap();
    symlink("busybox", root.path().join("bin/sh")).unwrap();
    let mut archive = tar::Builder::new(Vec::new());
    archive.follow_symlinks(false);
    archive.append_dir_all(".", root.path()).unwrap();
    let base = archive.into_inner().unwrap();
    registry.image("named", "1", std::slice::from_ref(&base));
    // Images of engines have the file, an empty one.
    registry.image("named", "2", &[base, layer(&[("etc/hosts", "")])]);
    let images = images(&host, &[&registry]);
    for tag in ["1", "2"] {
        let image = pull(&images, &registry, &format!("named:{tag}")).await.unwrap();
        let spec = SandboxSpec {
            name: "Some name".into(),
            image,
            hosts: vec![("service".into(), "10.1.2.3".into())],
            ..host.spec().await
        };
        let mut inside = host.engine.create(spec).await.unwrap();
        let look = "hostname; cat /etc/hosts; echo 127.0.0.9 mine >> /etc/hosts && grep -c mine /etc/hosts";
        let busybox = ["/bin/busybox", "sh", "-c", &format!("export PATH=/bin; alias hostname='busybox hostname' cat='busybox cat' grep='busybox grep'; {look}")].map(str::to_owned);
        let argv: Vec<&str> = busybox.iter().map(String::as_str).collect();
        let seen = run(&inside, command(&argv)).await.stdout;
        assert_eq!(
            seen,
            "some-name\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             127.0.0.1\tsome-name\n10.1.2.3\tservice\n1\n",
            "{tag}"
        );
        // It is in no layer, and a snapshot, which starts the sandbox again, keeps the names.
        inside.snapshot(&format!("key{tag}")).await.unwrap();
        assert!(file(&inside, "/etc/hosts").await.unwrap().contains("10.1.2.3\tservice\n"));
        let found = |dir: &Path| fs::read_to_string(dir.join("etc/hosts")).is_ok_and(|text| !text.is_empty());
        let snapshots = host.state.path().join("snapshots");
        let mut pending = vec![snapshots];
        while let Some(dir) = pending.pop() {
            assert!(!found(&dir), "{}", dir.display());
            let entries = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
            pending.extend(entries.filter(|path| path.is_dir() && !path.is_symlink()));
        }
        inside.destroy().await.unwrap();
    }
}

/// The only image of a build.
struct Only(Image);

impl BaseImages for Only {
    async fn resolve(&self, _reference: &str) -> Result<Image, BaseImageError> {
        Ok(self.0.clone())
    }
}

#[tokio::test]
async fn a_build_can_copy_files_to_where_a_sandbox_mounts_its_own() {
    let (host, registry) = (Host::start().await, Registry::start());
    registry.image("plain", "1", &[layer(&[("file", "")])]);
    let image = pull(&images(&host, &[&registry]), &registry, "plain:1").await.unwrap();
    let project = Project::new(
        "FROM plain AS one\nCOPY hosts resolv.conf /etc/\nFROM plain\nADD own.tar /\nCOPY --from=one /etc/hosts /copy\n",
    );
    for name in ["hosts", "resolv.conf"] {
        project.write(name, &format!("{name} of the context"));
    }
    fs::write(
        project.context().join("own.tar"),
        layer(&[("etc/hosts", "hosts of the archive"), ("etc/resolv.conf", "resolv of the archive")]),
    )
    .unwrap();
    let request = BuildRequest {
        context: &project.context(),
        dockerfile: &project.context().join("Dockerfile"),
        no_cache: None,
        network: Network::Host,
        limits: SandboxLimits::default(),
        log: LogSink::append(&project.dir.path().join("log")).unwrap(),
    };
    let built = build(&host.engine, request, &Only(image)).await;
    let built = built.unwrap_or_else(|error| panic!("{}", chain(&error)));
    // Without a network, it sees the image's name servers, and the names of its own.
    let inside = sandbox(&host, built.image).await;
    assert_eq!(file(&inside, "/etc/resolv.conf").await.as_deref(), Some("resolv of the archive"));
    assert_eq!(file(&inside, "/copy").await.as_deref(), Some("hosts of the context"));
    assert!(file(&inside, "/etc/hosts").await.unwrap().starts_with("127.0.0.1\tlocalhost\n"));
    inside.destroy().await.unwrap();
}
