"""nbgrader's settings: solved assignments in solutions/, what students get in exercises/ (`make exercises`)."""

c = get_config()  # noqa: F821 (nbgrader defines it)

c.CourseDirectory.course_id = "distributed-training-hardware"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.ClearSolutions.begin_solution_delimeter = "BEGIN SOLUTION"
c.ClearSolutions.end_solution_delimeter = "END SOLUTION"
c.ClearSolutions.code_stub = {"python": "# your code here\nraise NotImplementedError"}
c.ClearSolutions.text_stub = "*Your answer here.*"
c.Execute.timeout = 120  # seconds a cell may take: a test must outlast the limits it sets for a student's function
