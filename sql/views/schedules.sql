-- all_schedules: every schedule. Columns are only ever added, at the end.
create view sokka.all_schedules as
select s.name, s.schedule_id, s.generation,
       case when s.finished_at is not null then 'finished' when s.paused_at is not null then 'paused'
            when s.failing_since is not null then 'failing' else 'active' end as state,
       s.schedule, s.next_at, s.last_fire_at, s.last_task_id, s.runs, s.skipped, s.repeats,
       s.expires_at, s.missed, s.max_catch_up, s.grace, s.serial, s.source, s.description,
       s.task ->> 'topic' as topic, coalesce(s.task ->> 'kind', 'default') as kind, s.task,
       s.anchor_at, s.paused_at, s.failing_since, s.error, s.created_at, s.updated_at, s.finished_at
  from sokka.schedules s;

-- fired_ticks: which tick of which schedule became which task.
create view sokka.fired_ticks as
select f.name, f.schedule_id, f.generation, f.fire_at, f.fired_at, f.task_id, f.extra
  from sokka.schedule_fires f;

-- held_locks: the leased singletons that somebody holds now.
create view sokka.held_locks as
select l.key, l.owner, l.token, l.acquired_at, l.lock_expires_at
  from sokka.locks l
 where l.lock_expires_at > sokka.clock();
