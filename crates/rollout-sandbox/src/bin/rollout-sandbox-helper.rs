//! The helper process as a separate executable, for programs that use the engine as a library.

fn main() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == rollout_sandbox::HELPER_ARG) {
        rollout_sandbox::helper_main()
    }
    eprintln!("this program is started by the sandbox engine and does nothing by itself");
    std::process::exit(2);
}
