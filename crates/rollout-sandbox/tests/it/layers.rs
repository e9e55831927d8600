//! The cache of layers: what a change of a Dockerfile or of its files builds again.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use rollout_sandbox::build::Built;

use crate::common::{Host, engine};
use crate::project::{Project, chain, look};

/// Writes a different text each time that it runs.
const ONCE: &str = "RUN cat /proc/sys/kernel/random/uuid >";

async fn build(project: &Project, host: &Host) -> Built {
    project.build(host).await.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

/// Builds a Dockerfile and reads files of the image.
async fn files<const N: usize>(project: &Project, host: &Host, paths: [&str; N]) -> [String; N] {
    let built = build(project, host).await;
    let read = look(host, &built, &format!("cat {}", paths.join(" "))).await;
    let lines: Vec<String> = read.lines().map(str::to_owned).collect();
    lines.try_into().unwrap()
}

#[tokio::test]
async fn a_changed_line_builds_only_itself_and_what_follows() {
    let host = Host::start().await;
    let project = Project::new("");
    let write = |middle: &str| {
        project.write("Dockerfile", &format!("FROM base\n{ONCE} /a\n{ONCE} /b{middle}\n{ONCE} /c\nCMD x\n"))
    };
    write("");
    let [a, b, c] = files(&project, &host, ["/a", "/b", "/c"]).await;
    write(" && true");
    let [same_a, new_b, new_c] = files(&project, &host, ["/a", "/b", "/c"]).await;
    assert_eq!(same_a, a);
    assert_ne!(new_b, b);
    assert_ne!(new_c, c);
    write("");
    assert_eq!(
        files(&project, &host, ["/a", "/b", "/c"]).await,
        [a, b, c],
        "the first layers are still there"
    );
}

#[tokio::test]
async fn the_log_names_the_steps_that_were_built_before() {
    let host = Host::start().await;
    let project = Project::new("FROM base\nENV A=1\nRUN echo first\nRUN echo second\nCMD x\n");
    build(&project, &host).await;
    fs::remove_file(project.dir.path().join("log")).unwrap();
    project.write("Dockerfile", "FROM base\nENV A=1\nRUN echo first\nRUN printf changed\nCMD x\n");
    let built = build(&project, &host).await;
    assert!(!built.cached);
    insta::assert_snapshot!(project.log(), @r"
    Step 1/4 : ENV A=1
    Step 2/4 : RUN echo first
    Using the layer that was built before
    Step 3/4 : RUN printf changed
    changed
    Step 4/4 : CMD x
    ");
}

#[tokio::test]
async fn a_copied_file_counts_by_its_content() {
    let host = Host::start().await;
    let project =
        Project::new(&format!("FROM base\n{ONCE} /a\nCOPY f /f\n{ONCE} /b\nCOPY d /d\n{ONCE} /c\n"));
    project.write("f", "1");
    project.write("d/g", "1");
    let [a, b, c] = files(&project, &host, ["/a", "/b", "/c"]).await;
    // The same content, with another time.
    project.write("d/g", "1");
    assert!(build(&project, &host).await.cached);
    project.write("d/g", "2");
    let [same_a, same_b, new_c] = files(&project, &host, ["/a", "/b", "/c"]).await;
    assert_eq!((&same_a, &same_b), (&a, &b));
    assert_ne!(new_c, c);
    project.write("f", "2");
    let [same_a, new_b, _] = files(&project, &host, ["/a", "/b", "/c"]).await;
    assert_eq!(same_a, a);
    assert_ne!(new_b, b);
}

#[tokio::test]
async fn settings_count_where_they_are_used() {
    let host = Host::start().await;
    let project = Project::new("");
    let of = async |before: &str, after: &str| {
        project.write("Dockerfile", &format!("FROM base\n{ONCE} /a\n{before}\n{ONCE} /b\n{after}\n"));
        files(&project, &host, ["/a", "/b"]).await
    };
    let [a, b] = of("", "").await;
    for ignored in ["LABEL k=v", "CMD x", "ENTRYPOINT [\"x\"]", "EXPOSE 80", "STOPSIGNAL KILL"] {
        assert_eq!(of(ignored, "").await, [a.clone(), b.clone()], "{ignored}");
    }
    for used in ["ENV K=1", "ARG K=1", "USER root", "WORKDIR /srv", "SHELL [\"/bin/bash\", \"-c\"]"] {
        assert_eq!(of("", used).await, [a.clone(), b.clone()], "{used} after the command");
        let [same, new] = of(used, "").await;
        assert_eq!(same, a, "{used}");
        assert_ne!(new, b, "{used}");
    }
}

#[tokio::test]
async fn configurations_differ_with_the_same_files() {
    let host = Host::start().await;
    let project = Project::new("FROM base\nRUN touch /a\nLABEL k=1\n");
    let one = build(&project, &host).await;
    project.write("Dockerfile", "FROM base\nRUN touch /a\nLABEL k=2\n");
    let two = build(&project, &host).await;
    assert_eq!((two.cached, two.image.config().labels["k"].as_str()), (true, "2"));
    assert_ne!(one.image.identity(), two.image.identity());
}

#[tokio::test]
async fn a_failed_build_keeps_the_layers_before_the_failure() {
    let host = Host::start().await;
    let project = Project::new(&format!("FROM base\n{ONCE} /a\nRUN exit 7\n"));
    let error = chain(&project.build(&host).await.unwrap_err());
    assert!(error.starts_with("Dockerfile line 3 `RUN exit 7`: the command exited with code 7"), "{error}");
    project.write("Dockerfile", &format!("FROM base\n{ONCE} /a\n"));
    assert!(build(&project, &host).await.cached);
}

#[tokio::test]
async fn images_of_many_layers_work() {
    const LAYERS: usize = 60;
    let host = Host::start().await;
    let lines: String = (0..LAYERS)
        .map(|n| format!("RUN echo {n} > /usr/{n} && echo {n} > /srv/last && rm -f /usr/{}\n", n.max(5) - 5))
        .collect();
    let project = Project::new(&format!("FROM base\n{lines}"));
    let seen = project.look(&host, "ls /usr | grep -c '^[0-9]'; cat /srv/last /usr/58").await;
    assert_eq!(seen, "5\n59\n58\n");
    let layers = host.engine.state_dir().join("layers");
    assert_eq!(fs::read_dir(layers).unwrap().count(), LAYERS);
}

#[tokio::test]
async fn modes_and_owners_of_the_root_reach_all_layers() {
    let host = Host::start().await;
    let project =
        Project::new("FROM base\nRUN chmod 711 / && chown 7:8 /\nRUN true\nRUN touch /file\nRUN rm /file\n");
    assert_eq!(project.look(&host, "stat -c '%a %u %g' /; stat -c %a /usr").await, "711 7 8\n755\n");
}

#[tokio::test]
async fn a_later_layer_replaces_and_removes_files_of_earlier_ones() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base\nRUN mkdir -p /d/sub && touch /d/a /d/sub/b && ln -s a /d/link\nRUN rm -r /d/sub && mkdir /d/sub && touch /d/sub/c\n\
         RUN rm /d/a /d/link && mkdir /d/a && echo text > /d/link\nRUN mv /d/sub /d/moved && touch /d/sub\n",
    );
    let seen = project.look(&host, "cd /d && find . -mindepth 1 -printf '%p %y\\n' | sort").await;
    insta::assert_snapshot!(seen, @r"
    ./a d
    ./link f
    ./moved d
    ./moved/c f
    ./sub f
    ");
}

#[tokio::test]
async fn one_cache_can_be_mounted_twice() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base\nRUN --mount=type=cache,id=x,target=/one --mount=type=cache,id=x,target=/two touch /one/f && test -e /two/f\n",
    );
    build(&project, &host).await;
}

const STATE_DIR: &str = "ROLLOUT_SANDBOX_TEST_LAYERS_STATE_DIR";
const CONTEXT: &str = "ROLLOUT_SANDBOX_TEST_LAYERS_CONTEXT";

#[tokio::test]
async fn a_killed_build_is_continued_after_its_last_layer() {
    if let (Some(state), Some(context)) = (std::env::var_os(STATE_DIR), std::env::var_os(CONTEXT)) {
        Project::open(Path::new(&context)).build_with(&engine(Path::new(&state)).await, None).await.unwrap();
        return;
    }
    let host = Host::start().await;
    let project =
        Project::new(&format!("FROM base\n{ONCE} /a\n{ONCE} /b\nRUN echo waiting; exec sleep 1000\n"));
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["layers::a_killed_build_is_continued_after_its_last_layer", "--exact", "--nocapture"])
        .env(STATE_DIR, host.state.path())
        .env(CONTEXT, project.dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !project.log().contains("\nwaiting") {
        assert!(child.try_wait().unwrap().is_none(), "the build ended");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    project.write("Dockerfile", &format!("FROM base\n{ONCE} /a\n{ONCE} /b\n"));
    assert!(build(&project, &host).await.cached);
}
