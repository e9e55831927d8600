//! The helper process as a separate executable, for programs that use the tools as a library.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if args.get(1).is_some_and(|first| first == rollout_tools::HELPER_ARG) {
        return rollout_tools::helper_main(args);
    }
    eprintln!("this program is started by the tool server and does nothing by itself");
    ExitCode::from(2)
}
