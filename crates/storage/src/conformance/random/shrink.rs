//! Shrinks a failing list: leaves out halves, quarters, … single elements, for as long as the rest
//! still fails.

const TRIALS_MAX: usize = 600;

pub(super) fn shrink<T: Clone>(mut list: Vec<T>, fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut trials = 0;
    let mut chunk = list.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        let mut shorter = false;
        while start < list.len() && trials < TRIALS_MAX {
            let end = (start + chunk).min(list.len());
            let candidate = [&list[..start], &list[end..]].concat();
            trials += 1;
            if fails(&candidate) {
                list = candidate;
                shorter = true;
            } else {
                start = end;
            }
        }
        if trials >= TRIALS_MAX || (chunk == 1 && !shorter) {
            return list;
        }
        chunk = chunk.div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_elements_that_matter_stay() {
        let fails = |list: &[u32]| list.contains(&7) && list.contains(&91);
        assert_eq!(shrink((0..100).collect(), fails), vec![7, 91]);
        assert_eq!(shrink(vec![3], |_| true), Vec::<u32>::new());
    }
}
