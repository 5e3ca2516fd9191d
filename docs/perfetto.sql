-- What `hta-dsv4 annotate` wrote, checked and summed up in Perfetto's trace_processor.

-- 1. Slices by category: "activity" must equal the kernels, copies and sets that `hta-dsv4 info` counts.
select category, count(*) as slices, sum(dur) as sum_ns from slice group by category order by category;

-- 2. Slices that never ended (must be 0) and slices that lie in another one of their track (must be 0).
select sum(dur < 0) as open_slices, sum(depth > 0) as nested_slices from slice;

-- 3. Time by bucket: equals the rows of `hta-dsv4 shares` before they are divided by the steps, for counted steps.
select extract_arg(arg_set_id, 'debug.bucket') as bucket, count(*) as activities, sum(dur) as sum_ns
from slice where category = 'activity' group by bucket order by sum_ns desc;

-- 4. What asked for the glue.
select extract_arg(arg_set_id, 'debug.origin') as origin, count(*) as activities, sum(dur) as sum_ns
from slice where category = 'activity' and extract_arg(arg_set_id, 'debug.bucket') = 'glue'
group by origin order by sum_ns desc;
