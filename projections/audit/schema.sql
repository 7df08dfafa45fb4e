-- The audit file of Gatebus. It is made of the log and can be deleted at any
-- time: the bus makes it again.

-- One row per event, in the order of the log. What does not apply is null.
CREATE TABLE events (
  seq         INTEGER NOT NULL, -- place of the commit in the log
  i           INTEGER NOT NULL, -- place of the event in the commit
  time        TEXT NOT NULL,    -- UTC, of one length, so that it sorts
  name        TEXT NOT NULL,
  kind        TEXT NOT NULL,    -- of the aggregate
  key         TEXT NOT NULL,    -- of the aggregate
  workspace   TEXT NOT NULL,
  principal   TEXT NOT NULL,
  actor       TEXT NOT NULL,
  server      TEXT,
  session     TEXT,
  turn        TEXT,
  call        TEXT,
  connection  TEXT,
  approval    TEXT,
  causation   TEXT NOT NULL,    -- id of the command
  correlation TEXT NOT NULL,
  data        TEXT NOT NULL,    -- JSON: data ->> 'field'
  PRIMARY KEY (seq, i)
);
-- Few of them, as each costs every row that it has. Of the events of a call only
-- the first is found by its session, turn and connection, and leads to the others;
-- a question uses these three when it says the same condition.
CREATE INDEX events_time ON events (time) WHERE i = 0; -- that of the commit
CREATE INDEX events_name ON events (name);
CREATE INDEX events_call ON events (call) WHERE call IS NOT NULL;
CREATE INDEX events_approval ON events (approval) WHERE approval IS NOT NULL;
CREATE INDEX events_correlation ON events (correlation) WHERE correlation IS NOT call;
CREATE INDEX events_session ON events (session) WHERE session IS NOT NULL AND (kind <> 'call' OR name = 'call_requested');
CREATE INDEX events_turn ON events (turn) WHERE turn IS NOT NULL AND (kind <> 'call' OR name = 'call_requested');
CREATE INDEX events_connection ON events (connection) WHERE connection IS NOT NULL AND (kind <> 'call' OR name = 'call_requested');

-- How far the file is: one row.
CREATE TABLE log (
  applied INTEGER NOT NULL, -- the last commit that it has
  digest  BLOB NOT NULL,    -- of the rows of that commit
  newest  TEXT NOT NULL,    -- the latest time of a commit
  keep    INTEGER NOT NULL  -- seconds before newest after which rows are cut; 0 is never
);

-- One row per call that was asked for (R201), the newest last.
CREATE VIEW calls AS
SELECT q.seq, q.call, q.workspace, q.principal, q.actor, q.session, q.turn, q.connection, q.server,
  q.data ->> 'tool' AS tool, q.data ->> 'callable' AS callable, q.data ->> 'risk' AS risk,
  q.data ->> 'argument_keys' AS argument_keys,
  q.time AS requested, s.time AS started, e.time AS ended,
  CASE e.name
    WHEN 'call_succeeded' THEN 'allowed'
    WHEN 'call_blocked' THEN 'blocked'
    ELSE iif(e.name IS NULL, NULL, 'failed')
  END AS decision, -- allowed, blocked or failed; null while it is under way
  CASE e.name
    WHEN 'call_indeterminate' THEN 'indeterminate'
    WHEN 'call_blocked' THEN CASE
      WHEN e.data ->> 'reason' IN ('capability_denied', 'approval_denied', 'approval_expired') THEN 'denied'
      WHEN e.data ->> 'reason' IN ('not_found', 'tool_unbound') THEN 'not_found'
      ELSE 'invalid'
    END
    ELSE e.data ->> 'status'
  END AS outcome, -- R129; null while it is under way
  e.data ->> 'reason' AS reason, e.data ->> 'is_error' AS is_error, e.data ->> 'duration_ms' AS duration_ms,
  nullif(a.data ->> 'approval', '') AS approval
FROM events q
LEFT JOIN events s ON s.call = q.call AND s.name = 'call_started'
LEFT JOIN events a ON a.call = q.call AND a.name = 'call_authorized'
LEFT JOIN events e ON e.call = q.call AND e.name IN ('call_succeeded', 'call_failed', 'call_blocked', 'call_indeterminate')
WHERE q.name = 'call_requested';

-- One row per question to a person.
CREATE VIEW approvals AS
SELECT q.seq, q.approval, q.workspace, q.kind AS waits, q.key, q.principal, q.session, q.server, q.call, q.connection,
  q.data ->> 'action' AS action, q.data ->> 'target' AS target, q.data ->> 'tool' AS tool, q.data ->> 'risk' AS risk,
  q.time AS requested, q.data ->> 'expires' AS expires, d.time AS decided,
  d.data ->> 'decision' AS decision, d.data ->> 'kind' AS scope, d.data ->> 'by' AS "by", d.data ->> 'channel' AS channel,
  d.data ->> 'note' AS note, d.data ->> 'until' AS "until", x.time AS expired
FROM events q
LEFT JOIN events d ON d.approval = q.approval AND d.name = 'approval_decided' AND d.key = q.key AND NOT d.data ->> 'cached'
LEFT JOIN events x ON x.approval = q.approval AND x.name = 'approval_expired'
WHERE q.name = 'approval_requested';

-- One row per opening of a connection: the sequence of its claim is the generation.
CREATE VIEW connections AS
SELECT c.seq AS generation, c.connection, c.workspace, c.principal, c.session, c.server, c.data ->> 'runtime' AS runtime,
  c.time AS claimed, o.time AS opened, e.time AS ended, e.name AS "end",
  coalesce(e.data ->> 'reason', e.data ->> 'kind') AS reason, e.data ->> 'message' AS message
FROM events c
LEFT JOIN events o ON o.connection = c.connection AND o.name = 'connection_opened' AND o.data ->> 'generation' = c.seq
  AND (o.kind <> 'call' OR o.name = 'call_requested')
LEFT JOIN events e ON e.connection = c.connection AND (e.kind <> 'call' OR e.name = 'call_requested') AND e.name IN ('server_failed', 'connection_closed', 'connection_lost')
  AND e.data ->> 'generation' = c.seq
WHERE c.name = 'connection_claimed';

-- One row per check before a connection is claimed that said no.
CREATE VIEW denials AS
SELECT seq, connection, workspace, principal, session, server, time, data ->> 'stage' AS stage, data ->> 'reason' AS reason
FROM events WHERE name = 'server_denied';

-- One row per turn (R202).
CREATE VIEW turns AS
SELECT q.seq, q.turn, q.workspace, q.principal, q.session, q.time AS requested,
  CASE b.name
    WHEN 'turn_failed' THEN 'failed'
    WHEN 'turn_bound' THEN iif(EXISTS (SELECT 1 FROM events r WHERE r.turn = q.turn AND r.name = 'capability_rejected'
        AND (r.kind <> 'call' OR r.name = 'call_requested')),
      'resolved_degraded', 'resolved')
  END AS resolution,
  b.data ->> 'reason' AS reason, b.data ->> 'catalog' AS catalog, b.data ->> 'manifest_hash' AS manifest_hash,
  b.data ->> 'tool_count' AS tool_count, b.data ->> 'blob' AS blob, e.time AS ended
FROM events q
LEFT JOIN events b ON b.turn = q.turn AND b.name IN ('turn_bound', 'turn_failed') AND (b.kind <> 'call' OR b.name = 'call_requested')
LEFT JOIN events e ON e.turn = q.turn AND e.name = 'turn_ended' AND (e.kind <> 'call' OR e.name = 'call_requested')
WHERE q.name = 'turn_requested';

-- One row per binding of a turn that was called (R202). All bindings of a turn
-- lie in the blob that turns names; the log has the digest of them.
CREATE VIEW bindings AS
SELECT min(seq) AS seq, turn, workspace, principal, session, data ->> 'callable' AS callable, server, data ->> 'tool' AS tool,
  connection, data ->> 'fingerprint' AS fingerprint, data ->> 'definition_digest' AS definition_digest, count(*) AS calls
FROM events
WHERE name = 'call_requested' AND turn IS NOT NULL
GROUP BY turn, data ->> 'callable';

-- One row per tool of a catalog that a session saw.
CREATE VIEW catalogs AS
SELECT p.seq, p.time, p.workspace, p.session, p.data ->> 'catalog' AS catalog, x.value ->> 'name' AS callable,
  x.value ->> 'server' AS server, x.value ->> 'tool' AS tool
FROM events p, json_each(p.data, '$.tools') x
WHERE p.name = 'catalog_published';

-- One row per action of the list of R201, with what was decided. What starts and
-- stops of an installed server is in its states; its connection says the same once
-- more, and is left out.
CREATE VIEW actions AS
SELECT * FROM (
  SELECT seq, i, time, workspace, principal, turn, iif(kind = 'server', key, NULL) AS installation, server,
    data ->> 'tool' AS tool, data ->> 'callable' AS callable, nullif(data ->> 'catalog_version', '') AS catalog_version,
    CASE name
      WHEN 'declaration_loaded' THEN 'install'
      WHEN 'server_installed' THEN 'install'
      WHEN 'server_updated' THEN 'update'
      WHEN 'server_uninstalled' THEN 'uninstall'
      WHEN 'server_policy_changed' THEN 'policy'
      WHEN 'policy_set' THEN 'policy'
      WHEN 'server_status_changed' THEN CASE
        WHEN data ->> 'from' = data ->> 'to' THEN NULL
        WHEN data ->> 'to' = 'starting' THEN 'start'
        WHEN data ->> 'from' = 'starting' AND data ->> 'live' THEN 'started'
        WHEN data ->> 'from' = 'starting' AND data ->> 'to' = 'failed' THEN 'start_failed'
        WHEN data ->> 'to' = 'auth_required' THEN 'auth_required'
        WHEN data ->> 'to' = 'stopping' THEN 'stop'
        WHEN data ->> 'to' IN ('failed', 'stopped', 'disabled', 'not_started')
          AND data ->> 'from' NOT IN ('', 'not_started', 'disabled', 'stopped') THEN 'stopped'
      END
      WHEN 'connection_claimed' THEN 'start'
      WHEN 'connection_opened' THEN 'started'
      WHEN 'server_failed' THEN iif(data ->> 'kind' = 'auth_required', 'auth_required', 'start_failed')
      WHEN 'server_denied' THEN 'start'
      WHEN 'connection_closed' THEN 'stopped'
      WHEN 'connection_lost' THEN 'stopped'
      WHEN 'tools_discovered' THEN 'catalog_refreshed'
      WHEN 'call_started' THEN 'tool_call_started'
      WHEN 'call_succeeded' THEN 'tool_call_completed'
      WHEN 'call_blocked' THEN 'tool_call_blocked'
      ELSE 'tool_call_failed'
    END AS action,
    CASE
      WHEN name IN ('server_denied', 'call_blocked') THEN 'blocked'
      WHEN name IN ('server_failed', 'connection_lost', 'call_failed', 'call_indeterminate') THEN 'failed'
      WHEN name = 'server_status_changed' AND (data ->> 'to' IN ('failed', 'auth_required') OR data ->> 'reason_code' = 'boot') THEN 'failed'
      ELSE 'allowed'
    END AS decision,
    coalesce(data ->> 'reason', data ->> 'reason_code', data ->> 'kind') AS reason, data AS details
  FROM events e
  WHERE name IN ('declaration_loaded', 'server_installed', 'server_updated', 'server_uninstalled', 'server_policy_changed', 'policy_set',
      'server_status_changed', 'connection_claimed', 'connection_opened', 'server_failed', 'server_denied', 'connection_closed',
      'connection_lost', 'tools_discovered', 'call_started', 'call_succeeded', 'call_blocked', 'call_failed', 'call_indeterminate')
    AND NOT (name IN ('connection_claimed', 'connection_opened', 'server_failed', 'server_denied', 'connection_closed', 'connection_lost')
      AND session IS NULL AND EXISTS (SELECT 1 FROM events x
        WHERE x.name = 'server_installed' AND x.server = e.server AND x.workspace = e.workspace AND x.seq < e.seq))
)
WHERE action IS NOT NULL
ORDER BY seq, i;
