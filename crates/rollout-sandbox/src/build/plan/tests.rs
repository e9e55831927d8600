//! Tests of planning.

use super::*;
use crate::build::parse::parse;
use crate::build::stages::{bases, docker_arch};

fn base() -> ImageConfig {
    ImageConfig { env: vec![("PATH".to_owned(), "/bin".to_owned())], ..ImageConfig::default() }
}

fn last_stage(text: &str) -> Result<Plan, ImageBuildError> {
    let dockerfile = parse(text)?;
    bases(&dockerfile)?;
    plan(&dockerfile, dockerfile.stages.len() - 1, &base(), &[])
}

/// The actions of the last stage, one per line, in readable form.
fn actions(text: &str) -> String {
    let plan = match last_stage(text) {
        Ok(plan) => plan,
        Err(error) => return error.to_string(),
    };
    let line = |step: &Step| match &step.action {
        Action::Nothing => "nothing".to_owned(),
        Action::MakeDirs { paths, owner } => format!("mkdir {paths:?} owner {owner:?}"),
        Action::Run(run) => {
            let env: Vec<_> = run.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("run {:?} in {} as {:?} with {env:?}{:?}", run.command, run.cwd, run.user, run.mounts)
        }
        Action::Copy(copy) => {
            let Copy { from, sources, inline, target, into_dir, chmod, chown, extract, .. } = copy;
            format!(
                "copy {from:?} {sources:?} {inline:?} to {target} dir {into_dir} {chmod:?} {chown:?} {extract}"
            )
        }
    };
    plan.steps.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_configuration_follows_the_instructions() {
    let plan = last_stage(
        "FROM x\nENV A=1 B=\"two words\"\nENV A=2 C=$A-$B\nENV D old form $A\nWORKDIR /srv\nWORKDIR app/../lib\n\
         USER $D\nUSER nobody\nSHELL [\"/bin/bash\", \"-ec\"]\nLABEL v=\"$A\" w=x\nCMD [\"x\"]\nEXPOSE 80\n",
    )
    .unwrap();
    let env: Vec<_> = plan.config.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(env, ["PATH=/bin", "A=2", "B=two words", "C=1-two words", "D=old form 2"]);
    assert_eq!(plan.config.workdir, "/srv/lib");
    assert_eq!(plan.config.user.as_deref(), Some("nobody"));
    assert_eq!(plan.config.shell, ["/bin/bash", "-ec"]);
    assert_eq!(plan.config.labels.get("v").map(String::as_str), Some("2"));
    assert_eq!(plan.config.cmd, ["x"]);
    assert!(plan.config.exposed_ports.contains("80/tcp"));
}

#[test]
fn a_run_sees_the_arguments_in_scope_but_the_image_does_not() {
    let text = "ARG G=global\nARG UNUSED=1\nFROM x\nRUN a\nARG G\nARG A=1 B=$A PATH=lost\nENV A=env\nARG NONE\nRUN b $A\n";
    insta::assert_snapshot!(actions(text), @r#"
    run Argv(["/bin/sh", "-c", "a"]) in / as None with ["PATH=/bin"][]
    nothing
    nothing
    nothing
    nothing
    run Argv(["/bin/sh", "-c", "b $A"]) in / as None with ["PATH=lost", "A=env", "G=global", "B=1"][]
    "#);
    assert_eq!(last_stage(text).unwrap().config.env.len(), 2);
}

#[test]
fn the_forms_of_run() {
    insta::assert_snapshot!(actions(
        "FROM x\nWORKDIR /w\nUSER u:g\nSHELL [\"bash\", \"-c\"]\nRUN [\"echo\", \"$A\"]\nRUN <<E\none\nE\n\
         RUN <<E\n#!/usr/bin/python3\nE\nRUN --mount=type=cache,target=cache --mount=type=tmpfs,dst=/t x\n"
    ), @r##"
    mkdir ["/w"] owner None
    nothing
    nothing
    run Argv(["echo", "$A"]) in /w as Some("u:g") with ["PATH=/bin"][]
    run Argv(["bash", "-c", "one\n"]) in /w as Some("u:g") with ["PATH=/bin"][]
    run Script("#!/usr/bin/python3\n") in /w as Some("u:g") with ["PATH=/bin"][]
    run Argv(["bash", "-c", "x"]) in /w as Some("u:g") with ["PATH=/bin"][RunMount { target: "/w/cache", kind: Cache { id: "/w/cache", mode: 493, owner: (0, 0), read_only: false } }, RunMount { target: "/t", kind: Tmpfs { size: None } }]
    "##);
}

#[test]
fn the_forms_of_copy() {
    insta::assert_snapshot!(actions(
        "FROM a AS one\nFROM x\nARG D=dir\nWORKDIR /w\nCOPY a.txt .\nCOPY a b $D/\nCOPY [\"a b\", \"/c d\"]\nADD x.tar.gz /x\n\
         COPY --from=one --chmod=0755 --chown=$D:g /bin/x /bin/\nCOPY --from=0 a b\nCOPY --from=img:1 --link a b\n\
         COPY <<E <<'F' /etc/\nv $D\nE\nv $D\nF\n"
    ), @r#"
    nothing
    mkdir ["/w"] owner None
    copy Context ["a.txt"] [] to /w dir true None None false
    copy Context ["a", "b"] [] to /w/dir dir true None None false
    copy Context ["a b"] [] to /c d dir false None None false
    copy Context ["x.tar.gz"] [] to /x dir false None None true
    copy Other(Stage(0)) ["/bin/x"] [] to /bin dir true Some(493) Some("dir:g") false
    copy Other(Stage(0)) ["a"] [] to /w/b dir false None None false
    copy Other(Image("img:1")) ["a"] [] to /w/b dir false None None false
    copy Context [] [Inline { name: "E", text: "v dir\n" }, Inline { name: "F", text: "v $D\n" }] to /etc dir true None None false
    "#);
}

#[test]
fn unsupported_instructions_are_reported_with_their_line_and_advice() {
    let all = [
        "FROM x\nADD https://example.com/a.git /a\n",
        "FROM x\nRUN --mount=type=secret,id=s,required cat /run/secrets/s\n",
        "FROM x\nRUN --mount=type=cache,target=/a,from=y ls\n",
        "FROM x\nRUN --mount=type=tmpfs,target=/a,sizes=3 ls\n",
        "FROM x\nEXPOSE http\n",
        "FROM x\nHEALTHCHECK --interval=3 CMD x\n",
        "FROM x\nHEALTHCHECK --every=3s CMD x\n",
        "FROM x\nRUN --mount=type=cache ls\n",
        "FROM x\nRUN --network=none ls\n",
        "FROM x\nRUN --security=insecure ls\n",
        "FROM x\nCOPY --parents a b\n",
        "FROM x\nCOPY --chmod=u+x a b\n",
        "FROM x\nCOPY a b c\n",
        "FROM x\nCOPY --from=y <<E /e\nE\n",
        "FROM x\nCOPY <<\"/tmp/victim\" /t/\n/tmp/victim\n",
        "FROM x\nCOPY <<../../victim /t/\n../../victim\n",
        "FROM x\nCOPY <<\"..\" /t/\n..\n",
        "FROM x\nADD <<a/b /t\na/b\n",
        "FROM x\nENV A\n",
        "FROM x\nENV A=\"b\n",
        "FROM --platform=windows/mips x\n",
        "FROM ${NOTHING}\n",
        "FROM x\nUSER $NOTHING\n",
    ]
    .map(actions)
    .join("\n")
    .replace(docker_arch(), "ARCH");
    insta::assert_snapshot!(all, @r#"
    Dockerfile line 2 `ADD https://example.com/a.git /a`: ADD of https://example.com/a.git is not supported; fetch it with RUN, or put it next to the Dockerfile
    Dockerfile line 2 `RUN --mount=type=secret,id=s,required cat /run/secrets/s`: RUN --mount=type=secret is not supported; bring the files in with COPY
    Dockerfile line 2 `RUN --mount=type=cache,target=/a,from=y ls`: RUN --mount=type=cache with from= is not supported; copy the files with COPY
    Dockerfile line 2 `RUN --mount=type=tmpfs,target=/a,sizes=3 ls`: a mount has no field `sizes`
    Dockerfile line 2 `EXPOSE http`: `http` is not a port
    Dockerfile line 2 `HEALTHCHECK --interval=3 CMD x`: `3` of --interval is not a time such as 30s
    Dockerfile line 2 `HEALTHCHECK --every=3s CMD x`: HEALTHCHECK --every is not supported; remove the flag
    Dockerfile line 2 `RUN --mount=type=cache ls`: the mount has no target=
    Dockerfile line 2 `RUN --network=none ls`: RUN --network=none is not supported; remove the flag; a build has the network of its environment
    Dockerfile line 2 `RUN --security=insecure ls`: RUN --security is not supported; remove the flag
    Dockerfile line 2 `COPY --parents a b`: COPY --parents is not supported; remove the flag
    Dockerfile line 2 `COPY --chmod=u+x a b`: --chmod=u+x is not supported; write the mode as an octal number such as 755
    Dockerfile line 2 `COPY a b c`: with more than one source, the target must end with a slash
    Dockerfile line 2 `COPY --from=y <<E /e`: a here-document cannot be combined with --from
    Dockerfile line 2 `COPY <<"/tmp/victim" /t/`: `/tmp/victim` cannot be the file name of a here-document; use a plain word
    Dockerfile line 2 `COPY <<../../victim /t/`: `../../victim` cannot be the file name of a here-document; use a plain word
    Dockerfile line 2 `COPY <<".." /t/`: `..` cannot be the file name of a here-document; use a plain word
    Dockerfile line 2 `ADD <<a/b /t`: `a/b` cannot be the file name of a here-document; use a plain word
    Dockerfile line 2 `ENV A`: `A` is not of the form key=value
    Dockerfile line 2 `ENV A="b`: a " quote is not closed
    Dockerfile line 1 `FROM --platform=windows/mips x`: the platform windows/mips is not supported; this machine runs linux/ARCH
    Dockerfile line 1 `FROM ${NOTHING}`: `${NOTHING}` is empty after its variables are replaced
    Dockerfile line 2 `USER $NOTHING`: the user is empty
    "#);
}
