//! Tests of many readers, which run side by side.

/// Makes tests of every fourth reader each, which run side by side: one at a time in a process, for memory is counted
/// by process.
macro_rules! hostile_files_take_no_memory_out_of_proportion {
    ($readers:expr) => {
        one_thread::one_thread_per_process!();

        mod hostile_files_take_no_memory_out_of_proportion {
            use super::*;

            fn check(first: usize) {
                hostile::check($readers.into_iter().skip(first).step_by(4));
            }

            #[test]
            fn from_the_first_reader_on() {
                check(0);
            }

            #[test]
            fn from_the_second_reader_on() {
                check(1);
            }

            #[test]
            fn from_the_third_reader_on() {
                check(2);
            }

            #[test]
            fn from_the_fourth_reader_on() {
                check(3);
            }
        }
    };
}
pub(crate) use hostile_files_take_no_memory_out_of_proportion;
