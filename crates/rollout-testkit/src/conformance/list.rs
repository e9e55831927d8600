//! The list of the cases.

/// Creates a test for every case for a [`Subject`](crate::conformance::Subject), or for the cases in some
/// modules of [`conformance`](mod@crate::conformance): `conformance!(MyProvider; images errors)`.
#[macro_export]
macro_rules! conformance {
    ($subject:expr) => {
        $crate::conformance! { $subject;
            phases rewards processes separate errors images missing limits hostile
            cancel preserve snapshots files commands tunnel models isolation verdict losses
        }
    };
    ($subject:expr; $($module:ident)*) => {
        $($crate::conformance_module! { $module $subject })*
    };
}

/// Creates a test for every case of a module.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_module {
    (phases $subject:expr) => {
        $crate::conformance_cases! { phases $subject;
            a_trial_leaves_the_documented_directory_behind
            agent_scripts_get_the_documented_variables
            variables_of_the_agent_are_not_those_of_the_verifier
            a_missing_variable_in_a_task_fails_that_task_alone
            tests_and_solution_are_out_of_the_agents_sight
            the_oracle_finds_its_solution_under_both_names
            the_oracle_fails_a_task_without_a_solution_and_other_agents_do_not
            the_nop_agent_does_nothing_and_earns_nothing
            a_script_of_hundreds_of_kilobytes_runs
            an_install_file_is_found_beside_the_job
            shell_variables_in_scripts_belong_to_the_shell
            usage_reported_by_the_agent_is_in_the_result
            without_a_report_the_model_cost_is_unknown_and_not_zero
            output_files_grow_while_the_trial_runs
            scripts_need_no_executable_bit
            modes_and_links_of_solution_and_tests_are_kept
        }
    };
    (rewards $subject:expr) => {
        $crate::conformance_cases! { rewards $subject;
            reward_json_gives_a_reward_and_named_rewards
            reward_txt_takes_precedence_over_reward_json
            an_agent_error_can_be_graded_all_the_same
            the_exit_code_of_the_tests_can_be_ignored
            compat_harbor_grades_failed_agents_and_ignores_the_exit_code_of_tests
            without_a_verifier_a_trial_completes_without_a_reward
            the_verifiers_timeout_is_the_override_under_the_ceiling_times_the_multiplier
            a_reward_that_the_agent_forged_is_gone_before_the_tests_run
            directories_that_the_agent_made_links_are_directories_again
        }
    };
    (processes $subject:expr) => {
        $crate::conformance_cases! { processes $subject;
            a_daemon_that_rewrites_the_reward_is_ended_where_the_job_says_so
            a_service_that_the_tests_need_stays_by_default
            a_process_that_the_tests_leave_does_not_hold_up_the_trial
            a_process_that_the_install_script_leaves_serves_the_agent
            a_pipe_that_a_process_of_the_agent_keeps_open_does_not_hold_up_the_trial
            a_timeout_ends_the_agent_after_the_multiplied_time
        }
    };
    (separate $subject:expr) => {
        $crate::conformance_cases! { separate $subject;
            separate_tests_see_the_artifacts_and_nothing_else_of_the_agents_work
            an_agent_that_replaces_programs_or_keeps_processes_gains_nothing_from_separate_tests
            a_job_can_ask_for_separate_tests_and_name_artifacts
            a_job_can_keep_tests_in_the_agents_environment
            a_job_can_name_the_image_of_separate_tests
            a_task_can_name_the_image_of_separate_tests
            a_missing_artifact_is_noted_and_the_tests_decide
        }
    };
    (errors $subject:expr) => {
        $crate::conformance_cases! { errors $subject;
            a_failing_run_instruction_is_environment_build_failed_with_the_end_of_its_output
            a_syntax_error_in_the_dockerfile_is_environment_build_failed_with_its_line
            neither_dockerfile_nor_image_is_environment_build_failed_naming_the_file
            force_build_without_a_dockerfile_is_environment_build_failed_even_with_an_image
            an_instruction_path_that_cannot_be_created_is_environment_start_failed_naming_the_setting
            an_unavailable_base_image_is_environment_build_failed
            a_slow_build_is_environment_build_timeout_and_stops
            a_build_that_the_network_failed_is_tried_again_and_one_that_fails_by_itself_is_not
            an_unavailable_image_is_environment_image_pull_failed
            more_memory_than_the_machine_has_is_environment_resource_allocation_failed
            a_failing_install_script_is_agent_install_failed_and_nothing_else_runs
            a_slow_install_script_is_agent_install_timeout
            a_failing_execute_script_is_agent_execution_failed_and_its_logs_are_collected
            an_agent_killed_by_a_signal_is_agent_execution_failed_naming_the_signal
            a_slow_agent_is_agent_execution_timeout_and_everything_it_started_is_gone
            an_agent_timeout_skips_the_verifier
            an_out_of_memory_kill_is_named_in_the_error
            tests_that_exit_non_zero_are_verifier_failed_whatever_reward_they_wrote
            slow_tests_are_verifier_timeout
            tests_without_a_reward_are_verifier_reward_missing_quoting_their_output
            a_reward_that_is_not_one_finite_number_in_a_regular_file_is_verifier_reward_invalid
            incomplete_tasks_are_task_invalid_without_an_environment_and_the_others_run
            a_missing_registry_task_is_task_not_found
            output_that_cannot_be_captured_is_internal_error
        }
    };
    (images $subject:expr) => {
        $crate::conformance_cases! { images $subject;
            an_image_is_built_once_for_all_its_trials_and_kept_between_jobs
            a_forced_build_happens_once_for_all_trials_of_a_job
            tasks_of_the_same_content_share_one_build
            jobs_at_the_same_time_share_one_build
            trials_that_wait_for_a_build_all_get_it
            force_build_builds_the_dockerfile_even_where_the_task_names_an_image
            a_changed_context_is_another_image
            a_dockerignore_file_keeps_files_out_of_the_image
            the_build_log_is_there_when_something_was_built
            user_directory_and_variables_of_the_dockerfile_hold_for_agent_and_tests
            a_user_may_be_numeric_ids_without_a_name
            entrypoint_and_command_of_the_image_are_not_run
            tests_of_the_task_replace_those_in_the_image
            a_tests_link_of_the_image_leads_nowhere
            a_logs_directory_of_the_image_is_used_whatever_its_mode
            a_logs_directory_that_the_image_closes_to_its_own_user_is_named_in_the_error
        }
    };
    (missing $subject:expr) => {
        $crate::conformance_cases! { missing $subject;
            an_image_without_bash_fails_the_agent_with_what_is_missing
            an_image_without_tar_works
            an_image_without_sh_works
            the_path_of_the_image_decides_which_bash_runs
            an_image_with_bash_outside_of_its_path_fails_the_agent_with_what_is_missing
            an_image_without_its_user_fails_the_agent_naming_the_user
            a_missing_working_directory_is_created
        }
    };
    (limits $subject:expr) => {
        $crate::conformance_cases! { limits $subject;
            the_result_records_which_limits_are_enforced
            a_fraction_of_a_processor_is_enforced
            the_limits_of_the_job_override_those_of_the_task
            an_out_of_memory_kill_of_another_process_leaves_the_environment_working
        }
    };
    (hostile $subject:expr) => {
        $crate::conformance_cases! { hostile $subject;
            a_fork_bomb_ends_at_the_limit_of_processes_and_at_its_deadline
            an_agent_that_uses_all_memory_fails_alone_with_the_reason
            an_agent_that_kills_every_process_harms_no_more_than_itself
            output_that_is_not_utf8_is_kept_as_it_is
            links_that_leave_the_directory_and_pipes_are_skipped_and_reported
            an_agent_that_replaces_logs_by_a_file_harms_no_more_than_itself
            an_agent_that_removes_all_programs_fails_its_own_verification
            a_mess_is_collected_as_far_as_possible_and_removed_altogether
            an_agent_that_fills_its_logs_does_not_suppress_the_logs_of_the_tests
            a_pipe_in_the_place_of_a_log_does_not_block_the_job
            nothing_in_the_job_directory_belongs_to_others_or_has_special_bits
            a_flood_of_output_without_a_newline_is_cut_and_counted_in_little_memory
            trials_share_nothing_with_each_other_or_the_host
            an_agent_has_no_power_over_the_machine
            names_with_spaces_and_special_characters_work_everywhere
        }
    };
    (cancel $subject:expr) => {
        $crate::conformance_cases! { cancel $subject;
            a_job_stopped_while_it_builds_stops_the_build
            a_job_stopped_while_it_installs_leaves_nothing
            a_job_stopped_while_the_agent_works_leaves_nothing
            a_job_stopped_while_it_verifies_leaves_nothing
            a_job_stopped_at_once_ends_what_runs_inside
            an_environment_let_go_after_its_provider_leaves_nothing
        }
    };
    (preserve $subject:expr) => {
        $crate::conformance_cases! { preserve $subject;
            environments_are_preserved_as_the_policy_says
            a_preserved_environment_can_be_opened_again_and_stays
            a_place_where_nothing_was_preserved_cannot_be_opened
        }
    };
    (snapshots $subject:expr) => {
        $crate::conformance_cases! { snapshots $subject;
            trials_of_this_job_and_later_ones_share_one_install
            nothing_of_the_trial_that_installed_is_visible_in_others
            changes_of_the_install_are_visible_in_later_trials
            settings_of_the_image_hold_in_later_trials
            an_install_that_fails_is_not_kept
            files_that_the_install_wrote_to_a_volume_exist_in_later_trials
            a_snapshot_is_found_by_its_key_and_the_first_one_stays
        }
    };
    (files $subject:expr) => {
        $crate::conformance_cases! { files $subject;
            a_directory_is_copied_with_its_modes_and_links
            a_merge_keeps_existing_files_and_a_replacement_does_not
            a_copy_replaces_links_and_pipes_instead_of_going_through_them
            a_single_file_is_copied_to_its_path
            special_files_are_not_copied_in
            a_written_file_is_executable_and_replaces_an_existing_one
            reading_accepts_only_regular_files
            directories_are_created_for_all_users_and_kept_unless_emptied
            an_empty_directory_replaces_a_link_a_file_and_a_pipe
            a_link_is_made_unless_something_is_there
            copied_files_keep_their_content_and_belong_to_the_caller
            existing_files_of_the_host_are_kept
            files_that_cannot_be_copied_out_safely_are_skipped_and_reported
            a_file_that_is_too_long_comes_out_without_its_middle_and_holes_stay_holes
            the_first_directory_is_copied_whatever_its_siblings
            secrets_are_masked_before_they_are_written
            a_missing_directory_to_copy_from_is_an_error_of_its_path
        }
    };
    (commands $subject:expr) => {
        $crate::conformance_cases! { commands $subject;
            codes_and_signals_are_distinguished
            output_is_complete_when_a_command_has_ended
            arguments_and_variables_arrive_as_they_are
            a_command_has_no_input
            a_program_that_is_missing_or_cannot_run_is_an_error_that_names_it
            a_deadline_kills_detached_grandchildren_and_spares_older_processes
            a_deadline_does_not_wait_for_processes_that_ignore_signals
            survivors_are_listed_and_all_of_them_can_be_ended
            orphans_that_end_leave_no_trace
            commands_run_side_by_side
            a_user_can_open_a_terminal
        }
    };
    (tunnel $subject:expr) => {
        $crate::conformance_cases! { tunnel $subject;
            a_service_of_the_host_answers_agent_and_verifier_with_and_without_a_network
            many_connections_at_once_keep_their_data_apart
            connections_above_the_limit_wait_for_others_to_end
            large_data_arrives_whole_in_both_directions_at_once
            each_direction_of_a_connection_can_end_before_the_other
            a_slow_reader_on_either_side_holds_up_nothing_else
            connections_and_commands_with_much_output_share_the_way_out
            output_that_is_not_taken_holds_up_neither_connections_nor_commands
            a_connection_to_a_service_that_refuses_is_reset
            a_reset_on_one_side_is_not_an_orderly_end_on_the_other
            an_offer_outlives_the_processes_inside_and_a_snapshot
            several_services_have_ports_of_their_own
            a_connection_ends_on_the_host_with_its_environment
        }
    };
    (isolation $subject:expr) => {
        $crate::conformance_cases! { isolation $subject;
            an_environment_killed_from_outside_is_reported_as_lost
            killing_all_leaves_no_process_that_keeps_starting_others
            a_deadline_ends_a_process_that_keeps_starting_others
            an_agents_processes_cannot_reach_the_verifiers_where_the_provider_says_so
            localhost_resolves_without_a_network
        }
    };
    (verdict $subject:expr) => {
        $crate::conformance_cases! { verdict $subject;
            a_process_that_edits_the_tests_forges_no_reward
            a_process_that_edits_the_tests_and_restores_them_forges_no_reward
            a_process_that_replaces_the_tests_forges_no_reward
            a_process_that_moves_the_directories_away_forges_no_reward
            a_process_that_rewrites_the_reward_forges_none
            a_process_with_a_blank_name_and_command_line_forges_no_reward
            a_process_that_replaces_the_reward_forges_none
            a_process_that_hides_the_reward_of_the_tests_forges_none
            a_process_that_writes_the_reward_by_another_name_forges_none
            a_process_that_keeps_starting_another_forges_no_reward
            a_process_that_keeps_starting_another_is_ended_before_the_tests
            a_process_that_keeps_starting_another_in_its_own_memory_forges_no_reward
            a_process_that_keeps_starting_another_in_its_own_memory_is_ended_before_the_tests
            a_process_that_keeps_starting_another_does_not_outlive_a_timeout
            a_process_that_adds_files_to_the_tests_is_reported
            tests_beside_a_service_may_change_modes_and_add_files
            an_agent_that_has_its_environment_killed_gains_no_second_try
            a_process_that_has_the_environment_killed_gains_no_second_verification
            an_install_that_replaces_what_starts_environments_has_no_power_over_later_trials
        }
    };
    (losses $subject:expr) => {
        $crate::conformance_cases! { losses $subject;
            an_environment_that_is_ended_from_outside_while_the_agent_works_is_tried_again
            an_environment_that_is_ended_from_outside_while_the_tests_run_is_tried_again
        }
    };
    (models $subject:expr) => {
        $crate::conformance_cases! { models $subject;
            a_model_works_with_its_tools_where_scripts_of_agents_run
            a_model_that_has_its_environment_killed_fails_its_own_trial
            a_model_whose_time_is_up_is_stopped_with_everything_it_started
        }
    };
}

/// Creates a test for each of these cases of a module.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($module:ident $subject:expr; $($case:ident)*) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $case() {
                    let test = concat!(module_path!(), "::", stringify!($case));
                    $crate::conformance::run(test, $subject, $crate::conformance::$module::$case);
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    #[test]
    fn every_case_is_in_the_list() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
        let listed = fs::read_to_string(dir.join("list.rs")).expect("read the list");
        let listed: BTreeSet<&str> = listed.lines().map(str::trim).collect();
        let mut cases = 0;
        for file in fs::read_dir(dir).expect("list the modules").flatten() {
            let text = fs::read_to_string(file.path()).expect("read a module");
            for case in
                text.lines().filter_map(|line| line.strip_prefix("pub fn ")?.split_once("(suite: &Suite)"))
            {
                assert!(listed.contains(case.0), "{} is not in the list", case.0);
                cases += 1;
            }
        }
        assert!(cases > 100, "only {cases} cases were found");
    }
}
